# it learns to think: under which cup is the ball? The reward is 1 if the last letter is right
# python train_grpo.py config/grpo_think.py
# verify: start 43.9 %, line to beat 42.4 %, policy 99.2, 99.6, 99.0 %; seeds 1, 2, 3; tokens per
# completion 2.8 -> 9.6. With generators of seeds 2 and 3: 44.3 (41.0) -> 99.5, 48.2 (45.1) -> 99.4.
# One busy core: 68 s of its time from nothing; GRPO alone 10 s on a quiet one, evaluations aside

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
