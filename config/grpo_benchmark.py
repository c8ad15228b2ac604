# the sizes of the README's section on cost, for --benchmark=True: its parts are hardly trained
_parts = 'docstrings.py --dataset=shakespeare --block_size=256 --batch_size=8 --max_iters=2'
generator_recipe, judge_recipe = f'config/generator_{_parts}', f'config/judge_{_parts}'
dataset, block_size, batch_size, group_size = 'shakespeare', 64, 16, 8
blank_low, blank_high, out_dir = 0.5, 0.5, 'out-benchmark'
