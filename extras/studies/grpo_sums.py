# a language model of 135 million weights learns to add; first: python -m extras.smollm2 out/smollm2
# python train_grpo.py extras/studies/grpo_sums.py

include('plugins/causal.py')
include('plugins/hf.py')

dataset = 'extras/studies/sums.py'
max_new_tokens = 5
rewards = {'verify': 1.0}

generator = 'out/smollm2'

group_size = 8
batch_size = 16

kl_beta = 0.0               # a verifier leaves little to fool, and a reference costs a pass
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 2e-5
min_lr = 2e-6
warmup_iters = 3
max_iters = 75

out_dir = 'out-sums'
log_interval = 5
eval_interval = 25
eval_prompts = 100
dtype = 'float32'
