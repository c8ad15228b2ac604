# the sizes of the section on cost in config/README.md, for extras/benchmark.py

_parts = 'docstrings.py --dataset=shakespeare --block_size=256 --batch_size=8 --max_iters=2'

dataset = 'shakespeare'
block_size = 64
blank_low = 0.5
blank_high = 0.5

generator_recipe = f'config/generator_{_parts}'
judge_recipe = f'config/judge_{_parts}'

group_size = 8
batch_size = 16

out_dir = 'out-benchmark'
