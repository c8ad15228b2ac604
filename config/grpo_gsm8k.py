# Qwen2.5-0.5B-Instruct thinks before it answers, on one GPU of 24 GB: GSM8K
# pip install transformers accelerate && python train_grpo.py config/grpo_gsm8k.py
# Not run on a GPU, and not with this network: there is no result, and no knob is tuned. What was
# run: a few steps on these problems on a CPU, with a network of the shape of SmolLM2-135M.
#
# Memory by arithmetic, in GB, with matrix products in bfloat16. 0.49 billion weights in float32:
# 2.0, their gradients: 2.0, two moments of AdamW: 4.0. Copies of weights in bfloat16, for prompts
# and for completions: 1.4. Activations: 24 blocks * 72 kB * 6,000 tokens (16 texts, as long as the
# longest, without the beginnings that they share) = 10.4. For a moment, such as some logits and the
# gradient of their layer: 1.0. Together 21, without a reference. Of these, 72 kB, the copies and
# the moment were seen on a CPU, with 6 such blocks of random weights and 300 tokens.

include('plugins/causal.py')
include('plugins/hf.py')

dataset = 'gsm8k'
chat_template = True
max_new_tokens = 300        # of a solution; most take less
rewards = {'verify': 1.0}   # the last number is right

generator = 'Qwen/Qwen2.5-0.5B-Instruct'        # of the hub, 1 GB, downloaded once

group_size = 8
batch_size = 2              # 16 solutions at a time are what memory holds
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
eval_prompts = 128          # of 1,319; an evaluation writes eight solutions of each
