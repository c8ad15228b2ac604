"""One group by hand: what a step does to the k completions of a single prompt, in numbers that a
pocket calculator can check.

    python extras/explain.py config/grpo_config.py --group_size=6 --adv_norm=none"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import autocast, configure, init_device

import torch

import train_grpo
from data.dataset import print_groups
from judge import Scorer, check_rewards
from model import log_probs, make_optimizers


def set_up(**changes):
    """Knobs as on the command line, but for changes {name: value}; and what take_step() takes:
    policy, reference, optimizers, Scorer."""
    knobs = vars(train_grpo)
    _, functions = configure(knobs)
    knobs |= changes
    train_grpo.check_knobs()
    check_rewards(knobs['rewards'], functions)
    device, _ = init_device(knobs['device'], knobs['dtype'])
    data, policy, reference, judge, _ = train_grpo.load_parts(device)
    optimizers = make_optimizers(policy, knobs['learning_rate'], knobs['weight_decay'],
                                 knobs['beta1'], knobs['beta2'], knobs['optimizer'])
    return knobs, policy, reference, optimizers, Scorer(data, judge, functions)


if __name__ == "__main__":
    knobs, policy, reference, optimizers, scorer = set_up(
        batch_size=1, gradient_accumulation_steps=1, inner_updates=1, mini_batches=1, compile=False)
    with autocast(policy.device, knobs['dtype']):
        prompts = train_grpo.get_prompts(scorer.data, 0)
        [r], _, reward, advantages, stats = train_grpo.take_step(
            policy, reference, optimizers, scorer, prompts, knobs['learning_rate'],
            knobs['kl_beta'])
        with torch.no_grad():                   # the same choices under the policy after the update
            logp = log_probs(r.logits_of(policy), knobs['temperature'], r.kept)     # (U, V)
    before = train_grpo.sum_by_owner(r.logp_old, r)                         # (k,)
    after = train_grpo.sum_by_owner(logp[r.point, r.actions], r)            # (k,)
    columns = {'reward': reward[0], 'advantage': advantages[0], 'log p': before, 'after': after,
               'change': after - before}
    print_groups(scorer.data.tok, prompts, r.rows, r.causal, 'step 0', columns, most=len(r.rows))

    line = stats.read(policy.device)
    log_p = ' x log p' if knobs['objective'] == 'cispo' else ''
    print(f"mean reward {reward.mean():.3f}, std {reward.std():.3f}; adv_norm = "
          f"'{knobs['adv_norm']}'\n\nEach term is a sum over {len(r.owner)} choices, divided by "
          f"{train_grpo.loss_divisor(r)}: loss_norm = '{knobs['loss_norm']}'")
    for name, text in {
            'pg_loss': f"minus ratio x advantage{log_p}; before the update every ratio is 1",
            'kl_penalty': f"{knobs['kl_beta']:g} x KL, of which there is none at the start",
            'entropy_bonus': f"minus {knobs['entropy_coef']:g} x entropy",
            'loss': f"their sum; the norm of its gradient is {line['grad_norm']:.4f}"}.items():
        print(f"{name:14} {round(line[name], 5) + 0.0:9.5f}   {text}")
    if advantages.abs().max() == 0:
        print("Every advantage is 0: the group teaches nothing. What may move log p is rounding in "
              "the KL:\nthe optimizer makes a whole step of any gradient that is not exactly 0.")
    elif abs(line['pg_loss']) < 1e-6:
        print("The advantages of the group cancel in pg_loss. They do not in its gradient.")
