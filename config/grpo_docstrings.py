# runs of 4 characters in English prose, a likelihood judge
# python train_grpo.py config/grpo_docstrings.py

dataset = 'docstrings'      # 'shakespeare' | a file of yours, see data/text.py
blank_kind = 'answer'

generator = 'config/networks/generator_prose.py'
judge = 'config/networks/judge_prose.py'

batch_size = 32

kl_beta = 0.05
entropy_coef = 0.0
learning_rate = 2e-3
max_iters = 700

out_dir = 'out-docstrings'
