# a small GPT learns to think from a large one that has learned it, and from the reward

dataset = 'cups'
blank_kind = 'answer'
rewards = {'verify': 1.0}

generator = 'config/networks/generator_student.py'
reference = 'out-think'     # the teacher: python train_grpo.py config/grpo_think.py

group_size = 8
batch_size = 32

kl_beta = 0.1               # of KL(student || teacher), on what the student writes
entropy_coef = 0.0
optimizer = 'adamw'
learning_rate = 3e-3
max_iters = 150

out_dir = 'out-distill'
eval_interval = 25
