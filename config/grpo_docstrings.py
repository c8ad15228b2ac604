# English prose, with a network as its judge. Runs of 4 characters are blank, and the reward is how
# probable a second network finds the filled text. verify, the share of known words, is not
# rewarded, so it shows whether the judge teaches English or is fooled. 3 minutes to pretrain, 4
# minutes to run.
#
#     python train_grpo.py config/grpo_docstrings.py
#
# verify 25.3 -> 54.4, 49.5, 56.0 %, +24.2, +19.4, +25.8 above its line (seeds 1, 2, 3, float32)

dataset = 'docstrings'      # 'shakespeare' | a text of yours: data/text.py says how
blank_kind = 'answer'

generator = 'config/networks/generator_prose.py'
judge = 'config/networks/judge_prose.py'

batch_size = 32

kl_beta = 0.05
entropy_coef = 0.0
learning_rate = 2e-3
max_iters = 700

out_dir = 'out-docstrings'
