# The main job. A network fills all blanks of an equation in one pass, so no blank knows what the
# others become, and most equations are false. A judge that has read true equations scores the
# result, and GRPO teaches the blanks to agree. These are the defaults of train_grpo.py, and
# plugins/watch.py prints a group of step 0. A minute on two cores, pretraining included.
#
#     python train_grpo.py config/grpo_config.py
#
# verify 43.1 to 44.9 -> 95.8 to 97.4 %, +49.3 to +52.1 above its line
# (7 runs, generators 1, 2, 3, float32)
#
# The numbers beside a knob are verify at the end with another value of this knob, with three
# generators and seed 1. With the values of this file they are 96.9, 96.4, 96.6 %.

include('plugins/watch.py')

dataset = 'arithmetic'
rewards = {'judge': 1.0}

generator = 'config/networks/generator_arithmetic.py'       # pretrain.py makes missing ones
judge = 'config/networks/judge_arithmetic.py'

group_size = 16             # 4: 84.9, 89.0, 88.9 %
batch_size = 256            # 64: 94.6, 86.9, 89.8 %

# 'none': 84.2, 83.6, 85.8 %. Optimizers ignore the scale of the whole gradient, but not the scale
# of the advantages relative to the entropy bonus, and undivided advantages are small.
adv_norm = 'std'
kl_beta = 0.1               # 0: 95.0, 95.5, 92.9 %. This judge is hard to fool.
entropy_coef = 0.1          # 0: 96.8, 94.2, 93.3 %
learning_rate = 6e-3        # 2e-3: 93.6, 89.5, 95.7 %
max_iters = 300
