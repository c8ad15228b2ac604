# adds two numbers of eight digits, if it is told some of the digits of the sum

positions = 'learned'       # a digit has its column

n_layer = 1                 # two learn to look ahead: then the order hardly matters

batch_size = 128
learning_rate = 8e-3
max_iters = 1000
