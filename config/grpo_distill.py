# a small GPT learns to think from a large one that has learned it, and from the reward
# python train_grpo.py config/grpo_think.py && python train_grpo.py config/grpo_distill.py
# verify: start 34.3, 36.0, 37.5, line to beat 34.3, 36.0, 40.0, policy 90.9, 85.7, 89.9 %; seeds 1,
# 2, 3, each with its own student. Without the teacher 78.9, 69.8, 79.9 at its best rate, 1e-3; the
# teacher alone 93.4, 87.0, 91.2 (--rewards="{'verify': 0.0}" --kl_beta=1). 10 s of CPU time,
# besides teacher and pretraining

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
