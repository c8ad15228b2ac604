# The equations of grpo_config.py again, but in up to five passes from the left, so a blank sees
# what is before it. Seeing alone makes most equations true. GRPO adds the rest.
#
#     python train_grpo.py config/grpo_passes.py
#
# verify 86.4 to 90.3 -> 96.0 to 96.8 %, +1.0 to +4.2 above its line
# (3 runs, generators 1, 2, 3, float32)

include('plugins/passes.py')

n_fill_steps = 5
fill_order = 'left'

adv_norm = 'none'           # 'std' would blow up small differences among true equations
kl_beta = 0.1               # keeps completions as varied as the reference writes them
entropy_coef = 0.0
batch_size = 64
learning_rate = 2e-3
max_iters = 300

out_dir = 'out-passes'
eval_interval = 100
eval_prompts = 1000         # with 512 prompts the standard error would be too large
