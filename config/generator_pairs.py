# for pairs of prompt and answer: writes the answer, or with --mode=fill fills it; stopped early, so
# that something is left to learn from a reward; dataset, mode and block_size are the run's

blank_kind = 'answer'

batch_size = 64
max_iters = 130
