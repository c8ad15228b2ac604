# a world of your own, see docs/ideas.md
# python train_grpo.py config/grpo_world.py --dataset=examples/worlds/lock.py

dataset = 'examples/worlds/lock.py'
blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_world.py'

group_size = 32
batch_size = 32

adv_norm = 'batch'
kl_beta = 0.0
entropy_coef = 0.2          # while the entropy is below a line that falls to 0: nobody has to know
entropy_floor = 1.0         # how much a world needs, and when
learning_rate = 6e-3        # if the score falls in the first 50 steps: 4e-3
max_iters = 200

out_dir = 'out-world'
log_interval = 20
eval_interval = 50
eval_prompts = 512          # all that are held out
