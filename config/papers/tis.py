# TIS (F. Yao, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025): a
# token weighs as it is likelier for learner than sampler, 2 at most. (Not for a learned order.) In
# old.py the reference samples, and the policy learns:
# echo "def collect(n, *x, inner=collect): return inner(type(n)(policy=n.reference), *x)" > old.py
# python train_grpo.py config/grpo_think.py old.py config/papers/tis.py --reference=generator \
#     --max_iters=25
# verify: start, line 47.2 %, policy 91.9, 89.0, 87.4; seeds 1, 2, 3 (without: 86.2, 82.2, 84.8)

_sampled = []               # of each call of sample() in a complete(): what it said of its tokens
def sample(logits, k=1, greedy=False, inner=sample):
    ids = inner(logits, k, greedy)
    if 'top_k' in globals():                    # plugins/top.py
        logits = logits.masked_fill(~allowed_of(log_probs(logits).exp()), -torch.inf)
    _sampled.append(log_probs(logits).gather(1, ids).flatten())
    return ids

def complete(policy, prompts, k, greedy=False, inner=complete):
    _sampled.clear()
    r = inner(policy, prompts, k, greedy)
    r.more['sampled'] = torch.cat(_sampled)     # (M,) without the decisions of an order
    return r

def objective(stats, r, inner=objective):
    weight = (r.logp_old - r.more['sampled']).exp().clamp(max=2.0)       # not for diffucoder.py
    return inner(stats, replace(r, advantage=weight * r.advantage))
