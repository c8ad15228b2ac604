# The world hides a letter, the policy guesses, and the world answers < or >. Nobody tells the
# policy about binary search. It finds it: docs/assets/guess.png shows its guesses before and after.
# Binary search, the best strategy, wins every game.
#
#     python train_grpo.py config/grpo_guess.py           # half a minute
#
# verify 52.9 to 60.4 -> 92.9 to 98.8 %, +31.2 to +43.8 above its line
# (7 runs, generators 1, 2, 3, float32)

include('plugins/causal.py')
include('plugins/watch.py')

dataset = 'guess'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_game.py'

group_size = 32
batch_size = 32

adv_norm = 'batch'          # 'std': 97.5 %, the same (seed 1)
kl_beta = 0.0
# The middle letter is a good first guess only if the later guesses are good, too. The bonus keeps
# other first guesses alive until then. 0: 91.7 to 99.2 %
entropy_coef = 0.05
learning_rate = 3e-3
max_iters = 120

out_dir = 'out-guess'
log_interval = 20
eval_interval = 10
eval_prompts = 60           # each letter four times
