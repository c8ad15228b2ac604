# adaptive KL (arXiv:1909.08593, eq. 3): the weight of the KL grows while the KL is above a target
# and shrinks while it is below. As in the code of that paper, a step of 10,000 completions changes
# the weight by the relative error of the KL, by 20 % at most, a smaller one by less, in proportion
# python train_grpo.py config/papers/adaptive_kl.py --kl_beta=0.2 \
#     --judge=config/networks/judge_classifier.py
# verify, which this judge does not know: start 42.9 %, line to beat 48.2 %, policy 35.6, 34.3,
# 37.7 %; seeds 1, 2, 3, one thread (27.7, 26.6, 28.6 % with the weight 0.2 throughout)
# The log has the weight as kl_beta, that of the loss: not for rloo.py, whose KL is in the reward
# Left out: the KL is in the loss here, per token; there it is in the reward, per completion

TARGET_KL = 0.5             # in nats per token


def learn(networks, optimizers, rollouts, lr, inner=learn):
    global kl_beta
    knob, factor = kl_beta, state.get('kl_factor', 1.0)         # checkpoints keep the factor
    kl_beta = knob * factor
    numbers = inner(networks, optimizers, rollouts, lr) | {'kl_beta': kl_beta}
    kl_beta = knob
    error = max(-0.2, min(0.2, numbers.get('kl', TARGET_KL) / TARGET_KL - 1))
    n_completions = group_size * batch_size * gradient_accumulation_steps * mini_batches
    state['kl_factor'] = factor * (1 + error * min(1, n_completions / 10_000))
    return numbers
