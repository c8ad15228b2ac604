# a model of others, in a folder that save_pretrained wrote, on your own prompts and answers
# python data/pairs/prepare.py mine.jsonl --tokenizer=FOLDER --template=True
# python train_grpo.py config/grpo_pretrained.py --generator_checkpoint=FOLDER

dataset = 'pairs'
mode = 'causal'             # 'fill': a masked model, in n_fill_steps passes
block_size = 256            # ids of prompt and answer, and one for the end
blank_kind = 'answer'
rewards = {'verify': 1.0}   # is it the answer? or a function of yours, see grpo_composite.py

group_size = 8
batch_size = 1              # prompts at a time: as many as memory holds, for writing a token takes
gradient_accumulation_steps = 32    # as long for many rows as for few; 32 x 1 is the step of 1 x 32

kl_beta = 0.02              # 0 spares the memory of the reference
optimizer = 'adamw'         # of all: their matrices were not made for Muon
learning_rate = 2e-6
min_lr = 2e-7
max_iters = 200
compile = False

out_dir = 'out-pretrained'
eval_interval = 50
eval_prompts = 64
