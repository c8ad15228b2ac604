# fills 2 to 5 blanks of an equation such as 1_+3_=__7, each on its own

n_head = 8
n_embd = 128

learning_rate = 1e-2
weight_decay = 0.1
max_iters = 900
