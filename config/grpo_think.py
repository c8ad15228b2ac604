# it learns to think: under which cup is the ball? The reward is 1 if the last letter is right
# python train_grpo.py config/grpo_think.py
# verify: start 49.7 %, line to beat 59.6 %, policy 99.8, 99.8, 99.2 %; seeds 1, 2, 3; tokens per
# completion 3.4 -> 9.0. With generators of seeds 2 and 3: 46.4 (51.6) -> 96.6, 47.5 (52.0) -> 99.3.
# One core without AVX512-BF16: 69 s for the generator, 65 s of GRPO

dataset = 'cups'
blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_think.py'

group_size = 8
batch_size = 32

kl_beta = 0.0
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 1e-3
max_iters = 150

out_dir = 'out-think'
eval_interval = 10
