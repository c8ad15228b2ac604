# runs of 4 characters of Shakespeare, a likelihood judge
# python train_grpo.py config/grpo_shakespeare.py
# verify: start 32 %, line to beat 38.4 %, policy 62.8 %; seed 1

dataset = 'shakespeare'
blank_span = 4
blank_high = 0.5

generator = 'config/networks/generator_prose.py'
judge = 'config/networks/judge_prose.py'

batch_size = 32
adv_norm = 'std'
kl_beta = 0.05
optimizer = 'muon'
learning_rate = 2e-3
min_lr = 1e-4
max_iters = 700

out_dir = 'out-shakespeare'
log_interval = 10
