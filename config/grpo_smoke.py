# does everything once, in seconds: data, a small generator, a small judge, 30 steps, a resume-able run
generator_recipe = 'config/generator_arithmetic.py --n_layer=2 --n_embd=32 --max_iters=60 --batch_size=64'
judge_recipe = 'config/judge_arithmetic.py --n_layer=2 --n_embd=32 --max_iters=60 --batch_size=64'
group_size = 8
batch_size = 8
gradient_accumulation_steps = 2
learning_rate = 2e-3
max_iters = 30
eval_interval = 15
eval_prompts = 64
save_interval = 15
log_interval = 5
sample_interval = 15
out_dir = 'out-smoke'
