# tells real equations from those that the generator filled

objective = 'classifier'
generator = 'config/generator_arithmetic.py'
positions = 'learned'       # an equation has columns

max_iters = 500             # stopped early: a better classifier is harder to fool
