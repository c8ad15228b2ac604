# the main job: blanks of equations, a likelihood judge. All of this is train_grpo.py's default.

dataset = 'arithmetic'
rewards = {'judge': 1.0}

group_size = 16
batch_size = 64

adv_norm = 'std'
learning_rate = 2e-3
max_iters = 450
