# a small GPT learns to think from a large one that has learned it, and from the reward
# python train_grpo.py config/grpo_think.py && python train_grpo.py config/grpo_distill.py
# verify: start 31.2, 34.0, 33.3 %, line to beat 34.8, 35.5, 35.7, policy 77.1, 79.7, 84.1 %; seeds
# 1, 2, 3, each with its own student (pretrain.py --seed). Without the teacher, --reference=
# --kl_beta=0, 45.5, 69.7, 66.7 at its best rate, 1e-3. From the teacher alone, --kl_beta=1
# --rewards="{'verify': 0.0}", 86.0, 80.7, 89.6; with config/kl/forward.py and a rate of 1e-2 93.9,
# 90.1, 97.2, with config/kl/symmetric.py 95.1, 90.0, 97.6. All by an earlier version

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
