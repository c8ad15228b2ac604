# Adaptive KL (arXiv:1909.08593, eq. 3). Which weight of the KL is right? Nobody knows it
# beforehand, but a KL that is allowed is easy to name. So the weight grows while the KL is above
# this target, and shrinks while the KL is below it. As in the code of the paper, 10,000 completions
# change the weight by the relative error of the KL, by 20 % at most; a smaller step changes it
# less, in proportion.
#
#     python train_grpo.py config/papers/adaptive_kl.py --kl_beta=0.2 \
#         --judge=config/networks/judge_classifier.py
#
# With seed 1 the kl is 0.45 to 0.63 at steps 100, 150, 200 and 250, and the weight falls from 0.2
# to 0.04. With the weight 0.2 throughout, the kl creeps from 0.13 at step 50 to 0.43 at step 250.
# verify 43.1 -> 58.9, 63.5, 63.0 %, without this file 57.3, 57.4, 57.0 % (seeds 1, 2, 3, float32)
# The log shows the weight as kl_beta. Not for rloo.py, whose KL is in the reward.
#
# Left out: in the paper the KL is in the reward, per completion; here it is in the loss, per token.

from plumbing.process import expect

TARGET_KL = 0.5             # in nats per token


def learn(networks, optimizers, rollouts, lr, inner=learn):
    global kl_beta
    expect(kl_beta > 0, "adaptive_kl.py: kl_beta is 0, and no factor changes that: --kl_beta=0.2")
    knob, factor = kl_beta, state.get('kl_factor', 1.0)         # checkpoints keep the factor
    kl_beta = knob * factor
    numbers = inner(networks, optimizers, rollouts, lr) | {'kl_beta': kl_beta}
    kl_beta = knob
    error = max(-0.2, min(0.2, numbers.get('kl', TARGET_KL) / TARGET_KL - 1))
    n_completions = group_size * batch_size * gradient_accumulation_steps * mini_batches
    state['kl_factor'] = factor * (1 + error * min(1, n_completions / 10_000))
    return numbers
