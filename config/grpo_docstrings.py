# runs of 4 characters in English prose, a likelihood judge
# python train_grpo.py config/grpo_docstrings.py
# verify: start 26.1 %, line to beat 32.2 %, policy 58.0, 55.6, 58.2 %; seeds 1, 2, 3, bfloat16, one
# thread: 3 minutes to pretrain, and 4 for a run. verify is the share of known words, and not the
# reward

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
