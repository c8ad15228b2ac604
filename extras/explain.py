"""Show what one step does to the k completions of a single prompt, in numbers that can be checked
with a pocket calculator. Another --seed shows another prompt. With a single prompt,
adv_norm = 'batch' is the same as 'std'.

    python -m extras.explain config/grpo_config.py --group_size=6 --adv_norm=none"""
import copy
import sys

import torch

import train_grpo as grpo
from model import make_optimizers
from rollout import token_stats
from run.machine import as_numbers, print_line
from run.progress import group_of, show_group

TERMS = {'pg_loss': "minus ratio x advantage, and every ratio is 1 before the update",
         'kl_penalty': "kl_beta x KL; the policy has not moved yet, so it is 0",
         'entropy_bonus': "minus entropy_coef x entropy",
         'loss': "their sum"}


def one_step(words):
    """Take the first step of a run with a single prompt. Return the Run, the Rollout, {name: scores
    (1, k)}, advantages (1, k), and the TokenStats of the policy before and after, and the log."""
    # These flags come last and win, so the command cannot ask for two prompts.
    run = grpo.set_up([*words, '--batch_size=1', '--gradient_accumulation_steps=1', '--epochs=1',
                       '--mini_batches=1'])
    assert grpo.fill_order != 'learned' and grpo.likelihood == 'trajectory', (
        "it shows probabilities of tokens, without the decisions of a learned order, and no "
        "estimates: expected another fill_order, and likelihood = 'trajectory'")
    policy = run.policy
    start = copy.deepcopy(policy)
    optimizers = make_optimizers(policy, grpo.optimizer, grpo.weight_decay)
    micro_steps, scores, advantages = grpo.collect(policy, run.scorer,
                                                   grpo.get_prompts(run.data, 0))
    metrics = grpo.learn(policy, run.scorer.reference, optimizers, micro_steps, advantages,
                         grpo.learning_rate, grpo.kl_beta)
    [(_, r)] = micro_steps
    with torch.no_grad():                       # what it says of the sampled tokens (k, T)
        before = token_stats(r, start, None, grpo.temperature)
        after = token_stats(r, policy, None, grpo.temperature)
    return run, r, scores, advantages, before, after, metrics


if __name__ == "__main__":
    run, r, scores, advantages, before, after, metrics = one_step(sys.argv[1:])
    logp = before.logp.sum(1)                   # (k,) of the completions
    logp_after = after.logp.sum(1)
    if grpo.dead_groups(scores['reward']).all():
        print("All rewards are equal, so nothing is learned from them: try another --seed")
    columns = {'advantage': advantages, 'log p': logp[None], 'after': logp_after[None],
               'change': (logp_after - logp)[None]}
    show_group('step 0', group_of(r, columns, reward=scores['reward']))
    print("advantage: see group_advantages() in train_grpo.py; log p, after: "
          "of the completion, before and after this update. Completions share tokens, so one can "
          "rise because others do that begin like it.")
    n = int(r.lengths.argmax())
    print(f"The tokens of {r.cases()[n]['completion']!r}, the first of the longest completions: "
          "probability before and after the update, and entropy in nats before")
    for t in r.is_sampled[n].nonzero()[:, 0]:
        token = run.data.tok.decode([int(r.sequences[n, t])])
        p = before.logp[n, t].exp()
        p_after = after.logp[n, t].exp()
        entropy = before.entropy[n, t]
        print(f"{token!r:7} {p:7.3f} {p_after:7.3f} {entropy:7.3f}")
    print(f"mean reward {scores['reward'].mean():.3f}, std {scores['reward'].std():.3f}; "
          f"adv_norm = '{grpo.adv_norm}'\n")
    terms = f"{r.n_tokens} sampled tokens"
    if grpo.loss_norm == 'sequence':
        terms = f"{len(r.sequences)} sequences, of each the mean of its tokens"
    print(f"Each term is a sum over {terms}, divided by {grpo.loss_divisor(r)}: "
          f"loss_norm = '{grpo.loss_norm}'")
    for name, words in TERMS.items():
        print(f"{name:14} {metrics[name].item():9.5f}   {words}")
    grad_norm = metrics['grad_norm'].item()
    print(f"{'grad_norm':14} {grad_norm:9.5f}   the length of the loss's gradient")
    others = as_numbers({name: value for name, value in metrics.items() if name not in TERMS})
    print_line('the log', others.items())
