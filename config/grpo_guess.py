# a world answers: the policy guesses a letter, and discovers binary search
# python train_grpo.py config/grpo_guess.py
# verify: start 55.8 %, line to beat 60.0 %, policy 99.2, 99.2, 98.8 %; seeds 1, 2, 3. With the
# generators of pretrain.py --seed=2 and 3: 98.8, 98.8 %, from 59.2 and 60.0 %. Any strategy wins
# at most 100 %: binary search. 11 s of one core of an AMD EPYC, and 8 s for pretraining
# 31 letters, and games that ignore the world: extras/studies/guess_31.py, guess_careless.py

include('plugins/causal.py')

dataset = 'guess'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_game.py'

group_size = 32
batch_size = 32

adv_norm = 'batch'          # with 'std' 96.7 %; with less entropy, 0, 93.3 % (seed 1)
kl_beta = 0.0
entropy_coef = 0.05         # the first guess is worth little before the later ones fit it
learning_rate = 3e-3
max_iters = 120

out_dir = 'out-guess'
log_interval = 20
eval_interval = 10
eval_prompts = 60           # each letter four times
