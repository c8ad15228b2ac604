# Truncated importance sampling (Yao et al., "Your Efficient RL Framework Secretly Brings You
# Off-Policy RL Training", 2025): if another distribution sampled than the one that learns, each
# token weighs as much as the two differ, at most 2 (the value of verl, slime and TRL; the text has
# no equation numbers). Here they are one network, but for rounding in bfloat16, or an estimate of
# the likelihood: --likelihood behind one of d1.py, diffucoder.py, unigrpo.py
# IcePop (arXiv:2510.18855, eq. 1 and 2) gives a weight outside [0.5, 5] no token: 0, and not 2

adv_norm = 'std'
objective = 'tis'
clip_low, clip_high = 0.2, 0.2
loss_norm = 'token'
likelihood, draw_prompts = 'trajectory', 'random'
kl_beta, kl_type = 0.0, 'exact'
entropy_coef = 0.0
TRL = {'vllm_importance_sampling_mode': 'token_truncate',      # it acts if vLLM samples
       'vllm_importance_sampling_clip_max': 2.0}


def tis(stats, logp_old, A, r):
    pg, numbers = ppo(stats, logp_old, A, r)
    weight = (logp_old - r.logp_sampled).exp()                  # (N, T), no gradient
    numbers['tis_frac'] = weight > 2.0
    return weight.clamp(max=2.0) * pg, numbers
