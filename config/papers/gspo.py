# GSPO, arXiv:2507.18071, eq. 5 and 7: a text has one ratio, the geometric mean of those of its
# tokens, and a narrow clip (5.1)
# python train_grpo.py config/grpo_think.py config/papers/gspo.py --batch_size=64 \
#     --mini_batches=4 --max_iters=20
# verify: start and line to beat 45.8 %, policy 85.8, 81.9, 83.3 %; seeds 1, 2, 3, one thread
# (without this file 99.5, 99.3, 99.4 %: such a narrow clip stops nine of ten tokens of short texts)
# clip_frac of the log is the share of the tokens of clipped texts
# LUSPO (arXiv:2602.05261) is this with --loss_norm=constant --clip_low=2e-3 --clip_high=2.5e-3

clip_low = 3e-4
clip_high = 4e-4
loss_norm = 'sequence'


def policy_loss(stats, rollout, inner=policy_loss):
    length = rollout.per_text(torch.ones_like(rollout.advantage))               # (N,)
    log_ratio = rollout.per_text(stats.logp - rollout.logp_old) / length        # (N,)  eq. 7
    logp = rollout.logp_old + rollout.per_token(log_ratio)      # so that all tokens have this ratio
    return inner(stats._replace(logp=logp), rollout)                            # eq. 5
