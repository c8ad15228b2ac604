"""One group by hand: what a step does to the k completions of a single prompt, in numbers that a
pocket calculator can check.

    python extras/explain.py config/grpo_config.py --group_size=6 --adv_norm=none"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import autocast, configure, init_device

import torch

import train_grpo
from data.dataset import print_group
from judge import Scorer, check_rewards
from model import log_probs, make_optimizers
from train_grpo import (check_knobs, exact_kl, get_prompts, load_parts, logp_of, sum_by_owner,
                        take_step)

if __name__ == "__main__":
    knobs = vars(train_grpo)
    _, functions = configure(knobs)
    knobs |= {'batch_size': 1, 'gradient_accumulation_steps': 1, 'inner_updates': 1,
              'mini_batches': 1, 'compile': False}
    check_knobs()
    check_rewards(knobs['rewards'], functions)
    device, _ = init_device(knobs['device'], knobs['dtype'])
    data, policy, reference, judge, _ = load_parts(device)
    rate = knobs['learning_rate']
    optimizers = make_optimizers(policy, rate, knobs['weight_decay'], knobs['beta1'],
                                 knobs['beta2'], knobs['optimizer'])
    with autocast(device, knobs['dtype']):
        rollouts, scores, reward, advantages, stats = take_step(
            policy, reference, optimizers, Scorer(data, judge, functions), get_prompts(data, 0),
            rate, knobs['kl_beta'])
        r = rollouts[0]
        with torch.no_grad():                   # the same choices under the policy after the update
            logits = r.logits_of(policy)                                    # (U, V)
            logp = log_probs(logits, knobs['temperature'], r.kept)          # (U, V)
            before = sum_by_owner(r.logp_old, r)                            # (k,)
            after = sum_by_owner(logp[r.point, r.actions], r)               # (k,)
            kl = None
            if reference is not None:
                logp = log_probs(logits, knobs['temperature'])
                kl = exact_kl(logp, logp_of(reference, r))[r.point].mean()
    columns = {'reward': reward[0], 'advantage': advantages[0], 'log p': before, 'after': after,
               'change': after - before}
    print_group(data.tok, r.prompts.tokens[0], r.prompts.mask[0], r.rows.cpu(), 'step 0',
                columns, r.causal, most=99)

    line = stats.read(device)
    print(f"mean reward {reward.mean():.3f}, std {reward.std():.3f}; adv_norm = "
          f"'{knobs['adv_norm']}'; {len(r.owner)} choices; loss_norm = '{knobs['loss_norm']}'\n\n"
          f"  {line['pg_loss']:8.4f}   - mean of ratio x advantage; every ratio is 1 before the "
          f"update\n+ {line['kl_penalty']:8.4f}   {knobs['kl_beta']:g} x KL(policy || reference)\n"
          f"+ {line['entropy_bonus']:8.4f}   -{knobs['entropy_coef']:g} x entropy\n"
          f"= {line['loss']:8.4f}   the loss\n")
    if advantages.abs().max() == 0:
        print("Every advantage is 0: the group teaches nothing.")
    elif abs(line['pg_loss']) < 5e-5:
        print("The advantages of a group cancel, so the loss is 0. Its gradient is not:")
    print(f"the gradient's norm is {line['grad_norm']:.4f}.")
    if kl is not None:
        print(f"After the update, at learning rate {rate:g}, the KL is {kl:.6f} nats per choice.")
