# a small GPT learns to think from a large one that has learned it, and from the reward
# python train_grpo.py config/grpo_think.py && python train_grpo.py config/grpo_distill.py
# verify: start 33.5, 36.9, 34.0 %, line to beat 33.5, 36.9, 35.0, policy 78.6, 79.1, 83.6 %; seeds
# 1, 2, 3, one thread, each with its own student (pretrain.py --seed). Without the teacher,
# --reference= --kl_beta=0 --learning_rate=1e-3, 47.7, 67.9, 65.1. From the teacher alone,
# --kl_beta=1 --rewards="{'verify': 0.0}", 82.5, 82.2, 94.5; with config/forward_kl.py
# --learning_rate=1e-2 96.9, 91.5, 97.1. The rates were the best of three for an earlier version

include('plugins/causal.py')

dataset = 'cups'
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
