# A real masked model, AntiBERTy, fills the loop of an antibody that decides what it binds to. The
# reward is 1 for a loop without motifs that may spoil it in production. (README.md, in this folder,
# says what these words mean, and what else changed.) 2 minutes, 1.2 GB.
#
#     python -m examples.antibodies.antiberty out/antiberty
#     python train_grpo.py examples/antibodies/free.py
#
# free 41.1 -> 99.3, 100.0, 99.6 %, +58.2, +58.9, +58.6 above its line (seeds 1, 2, 3, float32;
# transformers 5.24)

import re

include('plugins/hf.py')

dataset = 'out/antiberty/prompts.jsonl'
blank_kind = 'answer'
rewards = {'free': 1.0}

generator = 'out/antiberty'

group_size = 64             # one pass gives all of them; rare motifs still make a group differ
batch_size = 8

adv_norm = 'batch'          # one divisor for all prompts
kl_beta = 0.05              # 0.2: 97.1 % free (seed 1)
entropy_coef = 0.0
learning_rate = 1e-4
min_lr = 1e-5
warmup_iters = 3
max_iters = 30

out_dir = 'out-antibodies'
log_interval = 5
eval_interval = 5
eval_prompts = 70

# The sequence motifs of LAP (Satlawa et al., PLOS Computational Biology 2024, e1011881), all its
# severities, as AntPack's LiabilitySearchTool writes them down. The last one is ours.
MOTIFS = {
    'cysteine': 'C',                        # binds to another cysteine
    'oxidation': '[MW]',
    'glycosylation': 'N[^P][ST]',           # a cell may hang a sugar on it
    'deamidation': 'N[AGHNST]|[KST]N',      # N becomes D
    'isomerization': 'D[DGHST]',            # D becomes another D
    'fragmentation': '[DN]P|TS',            # the chain may break
    'no amino acid': '[^ACDEFGHIKLMNPQRSTVWY]',
}

def _loop_of(prompt, completion):
    """Return CDR-H3: what lies between the last C of the V gene and the W of the J gene."""
    return completion[prompt.rindex('C') + 1:prompt.rindex('_') + 1]

def free(prompts, completions):
    """Return 1 for each loop that has none of the motifs, else 0."""
    pattern = '|'.join(MOTIFS.values())
    return [float(not re.search(pattern, _loop_of(prompt, completion)))
            for prompt, completion in zip(prompts, completions)]
