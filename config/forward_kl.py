# the forward KL: KL(reference || policy) at each position, exact. It is large where the policy gives
# up what the reference does, so a student keeps all that its teacher does (arXiv:2306.13649). It is
# also the kl of the log. config/grpo_distill.py has a command


def divergence(logp, logp_ref):
    # The terms p - p_ref add up to 0. With them the gradient of equal distributions is exactly 0.
    return (logp_ref.exp() * (logp_ref - logp - 1) + logp.exp()).sum(-1)
