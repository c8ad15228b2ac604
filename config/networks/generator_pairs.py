# Writes the answers of pairs. It stops when 20 % of its samples are right, so that something is
# left to learn from a reward.

include('config/networks/writes.py')

kind = 'causal'
blank_kind = 'answer'       # learn only the answers: prompts may be random

batch_size = 64
max_iters = 1000
eval_interval = 10
stop_at = 0.2
