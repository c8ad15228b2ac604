# sorts letters, and is stopped before it can

dataset = 'sorting'
kind = 'causal'
blank_kind = 'answer'
n_layer = 2
batch_size = 128
learning_rate = 8e-3
max_iters = 275
eval_interval = 100
