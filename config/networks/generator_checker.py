# imitates the texts of a task that has a checker; stopped when 20 % of its samples pass, so that
# something is left to learn from the reward, and early, because texts that seldom pass are
# learned by heart otherwise

kind = 'causal'
blank_kind = 'answer'       # learn only answers: prompts may be random

batch_size = 64
max_iters = 300
eval_interval = 10
stop_at = 0.2
