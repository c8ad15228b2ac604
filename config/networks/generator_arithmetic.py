# Fills 2 to 5 blanks of an equation such as 1_+3_=__7, each without looking at the others. It
# learns which digits are likely at a blank, and that is all that it can learn.

batch_size = 128
learning_rate = 1e-2        # with 2e-2 some seeds did not learn to add
weight_decay = 0.03
max_iters = 1000
