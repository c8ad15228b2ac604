# learns to think in 22 tokens: a task for studies. Comes after grpo_think.py
# python train_grpo.py config/grpo_think.py extras/studies/grpo_cups20.py
dataset = 'extras/studies/cups20.py'
generator = 'extras/studies/generator_cups20.py'
max_iters = 100
out_dir = 'out-cups20'
