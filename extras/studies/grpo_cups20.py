# it learns to think in 22 tokens: config/grpo_think.py with up to twenty swaps
# python train_grpo.py extras/studies/grpo_cups20.py
# verify: start and line to beat 32.1 %, policy 95.3, 95.0, 95.1 %; seeds 1, 2, 3

include('config/grpo_think.py')

dataset = 'extras/studies/cups20.py'

generator = 'extras/studies/generator_cups20.py'

max_iters = 40

out_dir = 'out-cups20'
eval_interval = 10
