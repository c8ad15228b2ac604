# Does everything run? This file pretrains, trains and evaluates toys in seconds. They learn next to
# nothing.
#
#     python train_grpo.py config/grpo_smoke.py

generator = 'config/networks/generator_smoke.py'
judge = 'config/networks/judge_smoke.py'

group_size = 8
batch_size = 8
gradient_accumulation_steps = 2
max_iters = 30

out_dir = 'out-smoke'
log_interval = 5
eval_interval = 15
eval_prompts = 64
