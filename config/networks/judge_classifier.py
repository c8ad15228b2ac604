# tells real equations from those that the generator filled

kind = 'classifier'
against = 'config/networks/generator_arithmetic.py'
positions = 'learned'       # an equation has columns

max_iters = 500             # stopped early: a better classifier is harder to fool
