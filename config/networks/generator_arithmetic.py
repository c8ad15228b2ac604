# fills 2 to 5 blanks of an equation such as 1_+3_=__7, each without a look at the others

batch_size = 128
learning_rate = 1e-2        # with 2e-2 and two heads, some seeds did not learn to add
weight_decay = 0.03
max_iters = 1000
