"""plugins/top.py, plugins/watch.py, plugins/skip.py, the order of plugins, and plugins/causal.py
beside a slow loop. (Draws and steps with plugins are in test_grpo.py.)"""
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
    CAUSAL,
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
    step_of,
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
    for view, t, allowed in zip(r.views[r.view_of], r.position, r.more['allowed']):
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
    # Not the first group.
    grpo.liked = lambda rollout: worth(rollout.texts).where(torch.arange(16) >= 4, 1.0)
    inner = grpo.log_probs_of
    grpo.log_probs_of = lambda *words: inner(*words).masked_fill(words[1].position == 1, torch.nan)
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
    group = r.select(((r.text_of // 4 == 1) & (r.position != 1)).nonzero()[:, 0])
    group = group.select((10 * group.text_of + group.position).argsort())
    logps = [slow_stats(network, group).logp.detach() for network in (before, policy)]
    close(found, torch.stack((group.token, group.more.get('pass', 0 * group.position), *logps), 1))


# ---- plugins/skip.py -----------------------------------------------------------------------------


@pytest.mark.parametrize('kind', KINDS)
def test_texts_that_teach_nothing_are_not_read_and_the_gradient_is_the_same(kind, knobs):
    """Of four groups two teach nothing. A text that teaches is read as a whole, even tokens whose
    own advantage is 0. With an entropy bonus, or to compare with a later policy, all are read."""
    policy, reference, prompts = toy_of(
        kind, knobs, None, f'plugins/skip.py {TOP} --top_k=3 --loss_norm=sequence')
    r = grpo.complete(policy, prompts, 4)
    r.advantage = r.per_token(torch.randn(4, 4) * torch.tensor([[0.0], [1.0], [0.0], [1.0]]))
    is_read = r.advantage != 0
    r.advantage = r.advantage * (r.position % 2)
    is_read &= r.per_token(r.per_text(r.advantage.abs())) > 0
    assert is_read.any() and not is_read.all()
    step, part = step_of(policy, [r], reference), grpo.token_stats(policy, r, reference)
    logp = grpo.log_probs_of(policy, r)
    grpo.entropy_coef = 0.1
    with_bonus = grpo.token_stats(policy, r, reference)
    knobs(KINDS[kind][0], f'{TOP} --top_k=3 --loss_norm=sequence')
    if KINDS[kind][0]:          # its plugin includes plugins/skip.py: take that out
        assert grpo.token_stats.__wrapped__.__code__.co_filename == 'plugins/skip.py'
        grpo.token_stats = grpo.token_stats.__wrapped__.__defaults__[-1]
    whole = grpo.token_stats(policy, r, reference)
    close(step, step_of(policy, [r], reference))
    close(logp, whole.logp)
    for actual, expected, bonus in zip(part, whole, with_bonus):
        close(actual[is_read], expected[is_read])
        close(bonus, expected)
    assert part.entropy.isnan().equal(~is_read) and part.kl.isnan().equal(~is_read)


def test_no_view_is_read_of_texts_that_teach_nothing(knobs):
    policy, _, prompts = toy_of('causal', knobs)
    r = grpo.complete(policy, prompts, 4)
    r.advantage = r.per_token((torch.arange(16) == 5).double())
    policy.features = Mock(side_effect=policy.features)
    grpo.token_stats(policy, r)
    [call] = policy.features.call_args_list
    assert call.args[0].equal(r.texts[5:6])


# ---- plugins/causal.py ---------------------------------------------------------------------------


def slow_complete(policy, prompts, k):
    """Return texts, lists of ids, and the rows (text, position) of what the policy drew. It draws
    for one position after the other, for all texts at once, as complete() does, so it gets the same
    random numbers. It keeps no keys and values."""
    task, texts, rooms, records = prompts.task, [], [], []
    for whole, blank, record in zip(prompts.whole.tolist(), prompts.blank.tolist(), prompts.record):
        for _ in range(k):
            texts.append(whole[:blank.index(True)])
            rooms.append(blank.index(True) + sum(blank))
            records.append(task.records[record])
    has_ended, rows = set(), []
    for at in range(task.length):
        due = [n for n, text in enumerate(texts) if len(text) == at < rooms[n]
               and n not in has_ended]
        if not due:
            continue
        logits = [slow_logits(policy, torch.tensor(texts[n]), at) for n in due]
        drawn = grpo.sample(torch.stack(logits) * grpo.temperature)[:, 0].tolist()
        for n, id in zip(due, drawn):
            texts[n].append(id)
            rows.append((n, at))
            is_end, said = id == TOK.eos, None
            if task.reply and not is_end and at + 1 < rooms[n]:
                written = TOK.show(texts[n])[len(records[n]['prompt']):]
                said = task.reply(written, records[n]['answer'])
                said, is_end = said if isinstance(said, tuple) else (said, False)
            texts[n] = (texts[n] + TOK.encode(said or ''))[:rooms[n]]
            if is_end:
                has_ended.add(n)
    return texts, rows


@pytest.mark.parametrize('max_new_tokens', [0, 1, 3])
@pytest.mark.parametrize('kind', ['causal', 'a world'])
def test_texts_that_are_continued_equal_a_slow_loop_without_a_cache(kind, max_new_tokens, knobs):
    """Prompts have different lengths, and stay as they are. A world speaks, and ends texts."""
    policy, _, prompts = toy_of(kind, knobs, 5 * BEGINNINGS, temperature=2.0,
                                max_new_tokens=max_new_tokens)
    torch.manual_seed(1)
    r = grpo.complete(policy, prompts, 3)
    torch.manual_seed(1)
    texts, rows = slow_complete(policy, prompts, 3)
    assert [[id for id in ids if id != TOK.pad] for ids in r.texts.tolist()] == texts
    assert [*zip(r.text_of.tolist(), r.position.tolist())] == rows
    assert r.token.tolist() == [texts[n][at] for n, at in rows]
    assert r.views[r.view_of].equal(r.texts[r.text_of])


def test_pretraining_counts_the_samples_of_a_causal_network_that_are_right(knobs, file):
    """A recipe says so by config/networks/writes.py. It needs no plugin in the command."""
    path = file('odd.py', "def verify(completion):\n    return len(completion) % 2\n"
                "def texts():\n    return 2 * [[('b', 'a'), ('ca', 'a')]]")
    policy, _, prompts = toy_of('causal', knobs, 20 * BEGINNINGS, temperature=2.0)
    torch.manual_seed(1)
    r = grpo.complete(policy, prompts, 1)
    is_right = [len(text) % 2 for text in r.columns['completion']]
    knobs(temperature=2.0)
    recipe = runpy.run_path('config/networks/writes.py', vars(pretrain) | {'dataset': path})
    torch.manual_seed(1)
    close(recipe['share_right'](policy, prompts), sum(is_right) / len(is_right))
