# prompts and answers, such as 3h05m= and 185, or yours: --dataset=mine.jsonl
# python train_grpo.py config/grpo_pairs.py
# verify: start 18.8 to 38.6 %, line to beat 37.5 to 63.0 %,
# policy 76.1 to 92.2 % (docs/results.md: three generators, two precisions, two seeds)

include('plugins/causal.py')

dataset = 'hours'
rewards = {'verify': 1.0}   # is it the answer? Or a function of yours, see grpo_composite.py

generator = 'config/networks/generator_pairs.py'

group_size = 8
batch_size = 32

kl_beta = 0.0
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 300

out_dir = 'out-pairs'
