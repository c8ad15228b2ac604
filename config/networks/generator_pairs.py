# writes the answers of the run's pairs; stopped when 30 % of its samples are right, so that
# something is left to learn from a reward

kind = 'causal'

batch_size = 64
max_iters = 1000
eval_interval = 20
stop_at = 0.3
