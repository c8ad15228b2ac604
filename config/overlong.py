# a completion that did not end learns nothing (overlong filtering of DAPO, arXiv:2503.14476, 3.4)
# python train_grpo.py config/grpo_think.py config/overlong.py --max_new_tokens=6 --max_iters=50
# verify: start and line to beat 44.3 %, policy 63.4, 58.0, 58.3 %; seeds 1, 2, 3, one thread
# (without this file 74.8, 75.1, 74.9 %). The limit cuts thoughts, of nine letters. Yet the last one
# that is left is right after up to five swaps, and from this the policy learns nothing now
# Rewards of such texts still count in the mean of their group, in dead_groups and mean_*. A text
# that a world has ended did not end itself

include('plugins/causal.py')


def collect(networks, task, step, inner=collect):
    rollouts, scores = inner(networks, task, step)
    for r in rollouts:
        ended = r.per_text((r.token == r.prompts.task.tok.eos).to(r.advantage))         # (N,)
        r.advantage = r.advantage * ended[r.text_of]
    return rollouts, scores
