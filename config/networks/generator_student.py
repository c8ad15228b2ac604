# A student: a small GPT for the game of cups. It seldom thinks before it answers.

kind = 'causal'
blank_kind = 'answer'       # learn the answers; the prompts are random

n_layer = 2
n_embd = 32                 # half of generator_think.py
n_head = 2

batch_size = 128
learning_rate = 8e-3
max_iters = 500
