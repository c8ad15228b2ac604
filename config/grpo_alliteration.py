# prose whose words begin with s: a reward of five lines, beside the check that words are words
# python train_grpo.py config/grpo_alliteration.py
# alliteration: start 4.9 %, line to beat 20.3 %, policy 98.5, 98.2, 97.4 %; seeds 1, 2, 3 (with
# --adv_norm=std 97.9, 97.3, 97.8 %); 125 s of an idle Intel Xeon (125 s of CPU time), besides
# pretraining

dataset = 'docstrings'
blank_kind = 'suffix'
blank_low = 0.5
blank_high = 0.5
rewards = {'verify': 1.0, 'alliteration': 1.0}

generator = 'config/networks/generator_completion.py'

group_size = 8
batch_size = 16

adv_norm = 'batch'
kl_beta = 0.02
entropy_coef = 0.0
learning_rate = 1e-3
max_iters = 100

out_dir = 'out-alliteration'
log_interval = 5
eval_interval = 20
eval_prompts = 128

def alliteration(completions):
    """Share of the words of a completion, without its first, that begin with s, each counted once.
    """
    scores = []
    for completion in completions:
        words = completion.split()[1:]
        scores.append(len({word for word in words if word[0] in 'sS'}) / max(1, len(words)))
    return scores
