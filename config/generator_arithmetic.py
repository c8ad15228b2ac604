# fills 2 to 5 blanks of an equation such as 1_+3_=__7, each on its own
n_head, n_embd, learning_rate, weight_decay, max_iters = 8, 128, 1e-2, 0.1, 900
