"""plugins/top.py and plugins/watch.py, the order of plugins, and plugins/causal.py beside the plain
loop of config/networks/writes.py. (Draws and steps with plugins are in test_grpo.py.)"""
import copy
import runpy
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import pretrain
import train_grpo as grpo
from test_grpo import (  # noqa: F401
    BEGINNINGS,
    KINDS,
    PASSES,
    TOK,
    TOP,
    close,
    filtered,
    knobs,
    prompts_of,
    slow_logits,
    slow_stats,
    tiny,
    worth,
)
from test_grpo import toy as toy_of

# ---- plugins/top.py ------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', KINDS)
def test_a_rollout_has_the_ids_that_were_allowed_when_a_token_was_drawn(kind, knobs):
    """In each update log-probabilities are those among them: see the steps of test_grpo.py."""
    policy, _, prompts = toy_of(kind, knobs, None, TOP, top_k=3, top_p=0.8)
    r = grpo.complete(policy, prompts, 4)
    for view, t, allowed in zip(r.views[r.view_of], r.place, r.more['allowed']):
        assert allowed.equal(filtered(slow_logits(policy, view, t).softmax(0)) > 0)


# ---- the order of plugins ------------------------------------------------------------------------


def test_plugins_act_in_one_order_wherever_the_words_name_them(knobs, file):
    """Also before a file, behind it, and in it."""
    path = file('mine.py', f"include('{TOP}')\ninclude('{PASSES}')")
    found = []
    for words in (f'{PASSES} {TOP}', f'{TOP} {PASSES}', f'{path} {PASSES}', path):
        knobs(words, '--top_k=2 --n_fill_steps=2')
        policy = tiny()
        found.append(grpo.log_probs_of(policy, grpo.complete(policy, prompts_of('__c_'), 9)))
    assert len(found[0]) == 27 and all(logp.equal(found[0]) for logp in found)


# ---- plugins/watch.py ----------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['two passes, left to right', 'a world'])
def test_the_first_group_that_learns_has_its_log_probabilities_before_and_after(kind, knobs):
    """Those of a slow loop, in a step that is shown, and no other ones. A token at which no network
    has looked, here at place 1, has none."""
    policy, _, prompts = toy_of(
        kind, knobs, None, 'plugins/watch.py --group_size=4 --batch_size=4 --log_interval=2',
        rewards={'liked': 1.0})
    grpo.liked = lambda r: worth(r.texts).where(torch.arange(16) >= 4, 1.0)     # not the first one
    inner = grpo.log_probs_of
    grpo.log_probs_of = lambda *words: inner(*words).masked_fill(words[1].place == 1, torch.nan)
    folder = Mock(spec=grpo.RunFolder)
    for step in (3, 2):
        [r], _ = grpo.collect(SimpleNamespace(policy=policy), prompts.task, step)
        before = copy.deepcopy(policy)
        policy.head.weight.data += 0.1 * torch.randn(4, 8)                      # learns
        grpo.RunFolder.log(folder, step, {}, False)
    [samples] = [call.args[2] for call in folder.append.call_args_list
                 if call.args[0] == 'samples.jsonl']
    found = []
    for sample in samples:
        found += [[TOK.ids.get(text, 0), *numbers] for text, *numbers in sample['pieces']
                  if len(numbers) > 1]
    group = r.select(((r.text_of // 4 == 1) & (r.place != 1)).nonzero()[:, 0])
    group = group.select((10 * group.text_of + group.place).argsort())
    logps = [slow_stats(network, group).logp.detach() for network in (before, policy)]
    close(found, torch.stack((group.token, group.more.get('pass', 0 * group.place), *logps), 1))


# ---- plugins/causal.py ---------------------------------------------------------------------------


def test_the_plain_loop_without_a_cache_draws_the_same_texts_and_scores_them_alike(knobs):
    policy, _, prompts = toy_of('causal', knobs, 5 * BEGINNINGS, temperature=2.0)
    plain = SimpleNamespace(**runpy.run_path('config/networks/writes.py', vars(pretrain)))
    torch.manual_seed(1)
    r = grpo.complete(policy, prompts, 1)
    torch.manual_seed(1)
    assert plain.write(policy, prompts).equal(r.texts)
    prompts.task.verify = lambda completion, text, original: len(completion + text) % len(original)
    torch.manual_seed(1)
    share = plain.share_right(policy, prompts)
    close(share, grpo.score(r, None, {'verify': 1.0}, 0, 'val')['verify'].mean())
