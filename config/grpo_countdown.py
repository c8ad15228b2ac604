# countdown: three digits make a number in six attempts, and the world says too small or too large
# python train_grpo.py config/grpo_countdown.py
# verify: start and line to beat 47.0 % (greedy 33.6, pass@4 88.3), policy 92.6, 91.1, 89.9 %; seeds
# 1, 2, 3. Random attempts find 51 %; halving what is left finds all. 180 s of one core of an AMD
# EPYC, and 20 s for pretraining
# without a world: extras/studies/countdown_alone.py

include('plugins/causal.py')

dataset = 'countdown'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_game.py'

group_size = 16
batch_size = 64

kl_beta = 0.0
entropy_coef = 0.0
learning_rate = 4e-3
max_iters = 200

out_dir = 'out-countdown'
log_interval = 20
eval_interval = 20
