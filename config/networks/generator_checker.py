# imitates the texts of a dataset that has a checker; stopped when 20 % of its samples pass, so that
# something is left to learn from the reward, and early, because texts that seldom pass are
# learned by heart otherwise

include('config/networks/generator_pairs.py')

max_iters = 300
