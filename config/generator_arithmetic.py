# fills 2 to 5 blanks of an equation such as 1_+3_=__7, each without a look at the others

positions = 'learned'       # an equation has columns
n_head = 2

batch_size = 128
learning_rate = 2e-2
weight_decay = 0.1
max_iters = 800
seed = 16                   # GRPO depends on it: see config/README.md, advantages
