# a completion that did not end learns nothing (overlong filtering of DAPO, arXiv:2503.14476, 3.4)
# python train_grpo.py config/grpo_think.py plugins/overlong.py --max_new_tokens=6 --max_iters=50
# verify: start and line to beat 44.3 %, policy 63.4, 58.0, 58.3 %; seeds 1, 2, 3, one thread
# (without this file 74.8, 75.1, 74.9 %). The limit cuts thoughts, of nine letters. Yet the last one
# that is left is right after up to five swaps, and from this the policy learns nothing now
# Rewards of such texts still count in the mean of their group, in dead_groups and mean_*. A text
# that a world has ended did not end itself

include('plugins/causal.py')


def collect(networks, task, step, *more, inner=collect):
    rollouts, scores = inner(networks, task, step, *more)
    for rollout in rollouts:
        is_eos = rollout.token == rollout.prompts.task.tok.eos                          # (M,)
        has_ended = rollout.per_text(is_eos.to(rollout.advantage))                      # (N,)
        rollout.advantage = rollout.advantage * rollout.per_token(has_ended)
    return rollouts, scores
