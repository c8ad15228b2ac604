# A second reward after free.py, because GRPO had a side effect: free loops became positively
# charged, and positive loops bind more often to the wrong thing.
#
#     python train_grpo.py examples/antibodies/free.py examples/antibodies/charge.py
#
# free 41.1 -> 99.3 %, charge 37.1 -> 99.6 % (seed 1, float32; greedy at the start 38.6, 55.7)

rewards = {'free': 1.0, 'charge': 1.0}
adv_norm = 'batch'          # 'std' would make each prompt's last few loops as loud as a whole group

out_dir = 'out-antibodies-charge'

def charge(prompts, completions):
    """Return 1 for each loop with a net charge of -1 or -2, else 0. K and R are positive, D and E
    negative. Antibodies with positive loops bind more often to the wrong thing (PMC6524611)."""
    scores = []
    for prompt, completion in zip(prompts, completions):
        loop = _loop_of(prompt, completion)     # noqa: F821  it is a function of free.py
        net = sum(map(loop.count, 'KR')) - sum(map(loop.count, 'DE'))
        scores.append(float(net in (-1, -2)))
    return scores
