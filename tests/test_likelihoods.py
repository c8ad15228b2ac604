"""Estimates of the likelihood: plugins/masks.py and the papers that have masks."""
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import train_grpo as grpo
from test_grpo import TEXTS, TOK, TOP, knobs, prompts_of, slow_stats, tiny  # noqa: F401

# What a paper can draw for a text whose places 1, 2, 3 were sampled, and 0 was given, by its
# definition: (probability, [(weight, blanks)]). A share is uniform, in [0.2, 0.8] or in [0, 1], of
# three blanks, rounded, and at least one.
ALL = {1, 2, 3}
MASKS = {
    'd1': [(0.85, [(1, ALL)]), (0.15, [(1, ALL | {0})])],
    'diffucoder': [(1 / 3, [(0.5, ALL), (1.5, {t}), (0.75, ALL - {t})]) for t in ALL],
    'unigrpo': [(1 / 6, [(1, ALL)]), *[(1 / 6, [(1, {t})]) for t in ALL],
                *[(1 / 9, [(1, ALL - {t})]) for t in ALL]],
}


@pytest.mark.parametrize('paper', MASKS)
def test_the_mean_of_an_estimate_over_random_masks_is_that_over_all_masks(paper, knobs):
    """Of each token and number. Equal texts have masks of their own; padding is never hidden."""
    knobs(f'config/papers/{paper}.py', temperature=0.8)
    policy, reference = tiny(), tiny(seed=3)
    n = 10_000
    prompts = prompts_of('b=aa', 'bb=a').task.prompts_of(torch.tensor([0]))     # with padding
    many = grpo.complete(policy, prompts, n, greedy=True)
    one = many.select(many.text_of == 0)
    expected = 0
    for probability, looks in MASKS[paper]:
        for weight, blanks in looks:
            view = many.texts[:1].clone()
            view[0, [*blanks]] = TOK.blank
            stats = slow_stats(policy, replace(one, views=view, view_of=0 * one.text_of), reference)
            is_blank = view[0, one.position] == TOK.blank
            expected += probability * weight * is_blank * torch.stack(stats)    # (4, 3)
    # (a pass fills a place of all texts)
    stats = torch.stack(grpo.token_stats(policy, many, reference)).nan_to_num(0).view(4, 3, n)
    assert ((stats.mean(2) - expected).abs() < 5 * stats.std(2) / n ** 0.5 + 1e-9).all()


@pytest.mark.parametrize('paper', MASKS)
def test_an_estimate_is_compared_with_itself_and_masks_of_the_epochs_differ(paper, knobs):
    """The policy stands still."""
    knobs(f'config/papers/{paper}.py', TOP, '--top_k=3 --fill_order=random --n_fill_steps=2 '
          '--epochs=2')
    policy, pairs = tiny(), []
    r = grpo.complete(policy, prompts_of(*TEXTS), 4)
    r.advantage = torch.ones(len(r.text_of))

    def objective(stats, r):
        pairs.append(torch.stack((stats.logp, r.logp_old)))
        return stats.logp, r.logp_old

    grpo.policy_loss = objective
    grpo.learn(SimpleNamespace(policy=policy, reference=policy), [], [r], 0.0)
    assert all(stats.equal(old) for stats, old in pairs) and not pairs[0].equal(pairs[1])
