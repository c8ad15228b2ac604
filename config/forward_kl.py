# The KL the other way round: KL(reference || policy), exact, at each position. The usual KL is
# large where the policy does what the reference would not do. This one is large where the policy
# gives up what the reference would do. So a student that is pulled by it keeps everything its
# teacher does (arXiv:2306.13649). The log shows it as kl.
#
#     python train_grpo.py config/grpo_distill.py config/forward_kl.py --kl_beta=1 \
#         --rewards="{'verify': 0.0}" --learning_rate=1e-2

from plumbing.process import expect


def divergence(logp, logp_ref):
    expect(kl_estimate == 'exact', "config/forward_kl.py is exact: --kl_estimate=exact")
    # p - p_ref adds up to 0 over the ids, and makes the gradient exactly 0 where p = p_ref.
    # (divergence() of train_grpo.py says why that matters.)
    return (logp_ref.exp() * (logp_ref - logp - 1) + logp.exp()).sum(-1)
