# Qwen2.5-0.5B-Instruct solves the word problems of GSM8K on one GPU of 24 GB. It thinks in words
# before it answers, and only its last number is rewarded. Look at `dead_groups` first: near 1,
# hardly any group teaches something. (docs/language-models.md: what to change for less memory.)
# pip install transformers accelerate && python train_grpo.py config/grpo_gsm8k.py
# Not run on a GPU, and not with this network: there is no result, and no knob is tuned. An earlier
# version took three steps of 2 x 8 completions of 200 tokens on a CPU, with random weights of the
# shape of SmolLM2-135M. Memory, computed and not measured: 22 GB (docs/gpu.md)

include('plugins/causal.py')
include('plugins/hf.py')

dataset = 'gsm8k'
chat_template = True
max_new_tokens = 300        # of a solution; most take less
rewards = {'verify': 1.0}   # the last number is right

generator = 'Qwen/Qwen2.5-0.5B-Instruct'        # of the hub, 1 GB, downloaded once
dtype = 'bfloat16'          # float32 would need 29 GB

group_size = 8
batch_size = 2              # memory holds 16 solutions at a time
gradient_accumulation_steps = 16

kl_beta = 0.0               # a verifier leaves little to fool, and a reference costs a pass
entropy_coef = 0.0
learning_rate = 2e-6
min_lr = 2e-7
warmup_iters = 5
max_iters = 100             # 3,200 prompts, with those that come twice: less than half of them

out_dir = 'out-gsm8k'
log_interval = 5
eval_interval = 50
eval_prompts = 128          # of 1,319; an evaluation writes five solutions of each
