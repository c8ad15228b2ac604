# Imitates the texts of a dataset that has a checker. It stops when 20 % of its samples pass, so
# that something is left to learn from the reward. If they seldom pass, it still stops after 300
# steps, because after more it knows its texts by heart.

include('config/networks/generator_pairs.py')

max_iters = 300
