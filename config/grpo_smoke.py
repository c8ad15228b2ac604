# seconds: does everything once, at toy size; learns next to nothing
_small = 'arithmetic.py --n_layer=2 --n_embd=32 --max_iters=60 --batch_size=64'
generator_recipe, judge_recipe = f'config/generator_{_small}', f'config/judge_{_small}'
group_size, batch_size, gradient_accumulation_steps = 8, 8, 2
learning_rate, max_iters, out_dir = 2e-3, 30, 'out-smoke'
eval_interval, eval_prompts, save_interval, log_interval, sample_interval = 15, 64, 15, 5, 15
