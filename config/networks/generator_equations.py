# Writes 047 after 12+35=. It stops when 40 % of its samples are right, so that something is left to
# learn from a reward.

include('config/networks/writes.py')

kind = 'causal'

n_embd = 96

learning_rate = 8e-3
max_iters = 600
eval_interval = 10
stop_at = 0.4
