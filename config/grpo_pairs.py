# Prompts and their answers, such as 3h05m= and 185. This is the file to start from if you have
# answers: write them as JSON lines, {"prompt": "3h05m=", "answer": "185"}, and add
# --dataset=mine.jsonl. The generator imitates the answers first, and stops when 20 % of its samples
# are right. The line to beat varies much from one generator to the next, so compare with it.
#
#     python train_grpo.py config/grpo_pairs.py
#
# verify 18.4 to 27.9 -> 76.4 to 87.2 %, +36.1 to +45.4 above its line
# (6 runs, generators 1, 2, 3, float32)

include('plugins/causal.py')

dataset = 'hours'
rewards = {'verify': 1.0}   # 1 for the answer. Or rewards of yours: see grpo_composite.py

generator = 'config/networks/generator_pairs.py'

group_size = 8
batch_size = 32

kl_beta = 0.0
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 300

out_dir = 'out-pairs'
