# a world answers: the policy guesses a letter, and discovers binary search
# python train_grpo.py config/grpo_guess.py
# verify: start 56.7 to 60.8 %, line to beat 57.5 to 66.7 %,
# policy 97.1 to 98.8 % (docs/results.md: three generators, two precisions, two seeds).
# Any strategy wins at most 100 %: binary search

include('plugins/causal.py')
include('plugins/watch.py')

dataset = 'guess'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_game.py'

group_size = 32
batch_size = 32

adv_norm = 'batch'          # seed 1: 97.5 %, also with 'std'
kl_beta = 0.0
entropy_coef = 0.05         # without: 91.7 to 99.2 %, because the first guess is worth little
                            # before the later ones fit it
learning_rate = 3e-3
max_iters = 120

out_dir = 'out-guess'
log_interval = 20
eval_interval = 10
eval_prompts = 60           # each letter four times
