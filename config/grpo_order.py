# it learns in which order to think: a masked GPT that knows where the ball is after each swap, if
# it knows where it was before, decides itself which thoughts it fills now

dataset = 'thoughts'
blank_kind = 'marked'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_thoughts.py'

n_fill_steps = 12
fill_order = 'learned'
group_size = 16
batch_size = 128

adv_norm = 'batch'
kl_beta = 0.0
optimizer = 'adamw'
learning_rate = 7e-4        # only a little of it reaches what the network knows: see decide_order()
min_lr = 5e-4
warmup_iters = 2
max_iters = 40

out_dir = 'out-order'
log_interval = 10
eval_interval = 10
eval_prompts = 256
