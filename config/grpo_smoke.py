# seconds: does everything once, at toy size; learns next to nothing

_small = 'arithmetic.py --n_layer=2 --n_embd=32 --max_iters=60 --batch_size=64'

generator_recipe = f'config/generator_{_small}'
judge_recipe = f'config/judge_{_small}'

group_size = 8
batch_size = 8
gradient_accumulation_steps = 2

learning_rate = 2e-3
max_iters = 30

out_dir = 'out-smoke'
log_interval = 5
eval_interval = 15
eval_prompts = 64
