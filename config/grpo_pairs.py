# your own prompts and answers: --dataset=mine.jsonl

blank_kind = 'answer'
rewards = {'verify': 1.0}   # is it the answer? Or a function of yours, see grpo_alliteration.py

generator = 'config/generator_pairs.py'
judge = 'config/judge_pairs.py'     # if rewards has 'judge'

group_size = 8
batch_size = 32

kl_beta = 0.0
learning_rate = 1e-3
max_iters = 300

out_dir = 'out-pairs'
