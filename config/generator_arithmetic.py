# fills 2 to 5 blanks of an equation such as 1_+3_=__7, each on its own
n_embd = 96
learning_rate = 8e-3
