# the equations of grpo_config in up to five passes, from the left: a blank sees those before it
# python train_grpo.py config/grpo_passes.py
# verify: start 85.9 to 91.1 %, line to beat 92.0 to 95.0 %, policy 94.6 to 96.8 % (docs/results.md:
# three generators, two precisions, two seeds)

include('plugins/passes.py')

n_fill_steps = 5
fill_order = 'left'

adv_norm = 'none'           # 'std' would blow up small differences among right answers
kl_beta = 0.1               # keeps the variety of the reference
entropy_coef = 0.0
batch_size = 64
learning_rate = 2e-3
max_iters = 300

out_dir = 'out-passes'
eval_interval = 100
eval_prompts = 1000         # pass@4 is near 1, and 512 prompts would blur it
