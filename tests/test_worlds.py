"""A world that answers: reply() speaks between the tokens of the policy."""
import itertools
import json
import os
import runpy

import pytest
import torch

import train_grpo
from dataset import Dataset, Tokenizer
from judge import Scorer
from processes import (EQUATIONS, assert_same, command, fails, read_log, refused, run, succeeds,
                       train, weights, write)
from rollout import Prompts, choose, token_stats
from run.folder import load_checkpoint
from run.samples import samples_of, show_group
from test_grpo import close, gradient, knobs, randn, tiny, toy_data     # noqa: F401, a fixture
from train_grpo import act, grpo_loss

TOK = Tokenizer('char', 'ab')       # ids 1 and 2; 0 ends a text


def world(reply, secrets, k, T, uniforms=None, widths=(1,)):
    """Return Prompts of a world, one for each secret, of T positions: 'a', 'ba', 'a', ..., with
    these widths, which are to be continued."""
    tokens = torch.full((len(secrets), T), TOK.pad)
    blank = torch.zeros_like(tokens).bool()
    for row, width in zip(range(len(secrets)), itertools.cycle(widths)):
        tokens[row, :width] = torch.tensor([2] * (width - 1) + [1])
        blank[row, width:] = True
    if uniforms is None:
        uniforms = torch.rand(len(secrets), k, T).double()
    data = toy_data(True, tok=TOK, reply=reply, secret=secrets)
    return Prompts(tokens, blank, uniforms, torch.zeros_like(tokens),
                   torch.zeros(len(secrets), k, 0, T), torch.arange(len(secrets)), data)


def echo(completion, secret):
    """After an a the world says its secret, after bb it ends the game."""
    if completion.endswith('bb'):
        return 'ab', True
    return secret if completion.endswith('a') else None


def logits_of(policy, ids):
    """Return the logits (V,) that follow a list of ids, by a pass over all of them."""
    x = policy(torch.tensor([[*ids, TOK.pad]]))
    return policy.logits(x[0, len(ids)])


def slow_completion(policy, prompts, row, uniforms):
    """Complete one prompt with uniforms (T,), token by token, without a cache. Return its ids, the
    positions that were sampled, and the log-probabilities of these tokens, with graph."""
    ids = prompts.tokens[row][~prompts.blank[row]].tolist()
    start, sampled, logp, done = len(ids), [], [], False
    secret = prompts.data.examples[row]['secret']
    while not done and len(ids) < len(uniforms):
        id, token_logp, *_ = choose(logits_of(policy, ids)[None], uniforms[[len(ids)]],
                                   top_p=train_grpo.top_p, top_k=train_grpo.top_k)
        sampled.append(len(ids))
        logp.append(token_logp[0])
        ids.append(int(id))
        if ids[-1] == TOK.eos:
            break
        if len(ids) < len(uniforms):
            said = prompts.data.reply(TOK.decode(ids[start:]), secret) or ''
            said, done = said if type(said) is tuple else (said, False)
            ids += TOK.encode(said)
    return (ids + [TOK.pad] * len(uniforms))[:len(uniforms)], sampled, logp


@pytest.mark.parametrize('filters', [{}, {'top_p': 0.8, 'top_k': 2}])
def test_a_rollout_in_a_world_equals_a_slow_loop_and_its_log_probs_a_full_pass(filters, knobs):
    """Prompts differ in length, replies too; some do not fit, and are cut."""
    knobs(**filters)
    policy = tiny(True, V=3, T=9)
    prompts = world(echo, ['b', 'ba', 'bbaab', ''], 12, 9, widths=(1, 3))
    r = act(policy, prompts)
    logp = token_stats(r, policy).logp
    for n, uniforms in enumerate(prompts.uniforms.flatten(0, 1)):
        ids, sampled, expected = slow_completion(policy, prompts, n // 12, uniforms)
        assert r.sequences[n].tolist() == ids
        assert r.is_sampled[n].nonzero()[:, 0].tolist() == sampled
        for values in (logp, r.logp_sampled):
            close(values[n, sampled], torch.stack(expected))
            assert values[n].count_nonzero() <= len(sampled)
    # a turn begins where a sampled token follows one that was given
    starts = r.is_sampled[:, 1:] & ~r.is_sampled[:, :-1]
    assert Scorer().score(['turns'], r)['turns'].flatten().equal(starts.sum(1).float())
    given = prompts.blank.repeat_interleave(12, 0) & ~r.is_sampled & (r.sequences < 3)
    assert given.sum() > 40 and len(set(given.sum(1).tolist())) > 3


def test_the_world_is_asked_once_for_equal_completions_of_equal_prompts():
    """In whatever order, and never about a completion that has ended or has no room left."""
    asked = []

    def reply(completion, secret):
        asked.append((secret, completion))
        return echo(completion, secret)

    prompts = world(reply, ['b', 'ab'], 30, 8)
    r = act(tiny(True, V=3, T=8), prompts[[0, 1, 0]])
    first, second, third = r.sequences.view(3, 30, 8).unbind()
    assert r.sequences[:30].equal(r.sequences[60:])         # with the same random numbers
    expected = set()
    for secret, sequences in (('b', first), ('ab', second)):
        rows = r.is_sampled[30:] if secret == 'ab' else r.is_sampled
        for ids, is_sampled in zip(sequences.tolist(), rows):
            ends = [t + 1 for t in range(1, 7) if is_sampled[t] and ids[t] != TOK.eos]
            expected |= {(secret, TOK.decode(ids[1:t])) for t in ends}
    assert set(asked) == expected and len(asked) == len(expected) < 40


def test_in_a_game_of_two_turns_the_mean_gradient_over_all_groups_is_that_of_the_expected_reward():
    """The world answers the first letter by another one, a text may end before: 7 outcomes, and 49
    groups of two of them."""
    def reply(completion):
        return {'a': 'b', 'b': 'a'}.get(completion)

    policy = tiny(True, V=3, T=4)
    logp, uniforms = [], []                     # of each outcome
    for first in range(3):
        p = logits_of(policy, [1]).log_softmax(0)
        seconds = [None] if first == 0 else range(3)
        for second in seconds:
            middles = [0.0, middle(p, first), 0.0, 0.0]
            total = p[first]
            if first > 0:                       # (1 becomes 2, and 2 becomes 1)
                q = logits_of(policy, [1, first, 3 - first]).log_softmax(0)
                total = total + q[second]
                middles[3] = middle(q, second)
            logp.append(total)
            uniforms.append(middles)
    logp = torch.stack(logp)
    close(logp.exp().sum(), torch.ones(()).double())
    groups = torch.tensor(list(itertools.product(range(7), repeat=2)))          # (G, 2)
    prompts = world(reply, [''] * 49, 2, 4, torch.tensor(uniforms).double()[groups])
    r = act(policy, prompts)
    stats = token_stats(r, policy, policy)
    close(stats.logp.sum(1), logp[groups].flatten())
    assert len({tuple(ids) for ids in r.sequences.tolist()}) == 7
    reward = randn(7)
    chance = logp[groups].sum(1, keepdim=True).exp().detach()
    advantages = reward[groups] - reward[groups.flip(1)]        # reward - mean of the others
    terms, _ = grpo_loss(stats, r, advantages * chance, 0.0)
    close(gradient(-terms['loss'] / 2, policy), gradient(logp.exp() @ reward, policy))


def middle(logp, id):
    """Return the uniform number in the middle of those that draw an id."""
    p = logp.exp().detach()
    return float(p[:id].sum() + p[id] / 2)


def test_a_checker_can_tell_what_the_policy_wrote_from_what_the_world_said():
    r = act(tiny(True, V=3, T=8), world(echo, ['b', 'ab'], 20, 8))
    for case, ids, is_sampled in zip(r.cases(), r.sequences, r.is_sampled):
        assert case['sampled'] == TOK.text_of(ids[is_sampled].tolist())
        assert case['completion'] == TOK.text_of(ids[1:].tolist())
        assert case['text'] == 'a' + case['completion']


def test_on_the_console_dots_stand_below_what_the_policy_wrote(capsys):
    r = act(tiny(True, V=3, T=8), world(echo, ['b'], 6, 8))
    show_group('here', samples_of(r, {'reward': torch.arange(6.0)}))
    text = capsys.readouterr().out
    for case, own in zip(r.cases(), r.is_sampled[:, 1:].tolist()):
        dots = ''.join(' .'[is_own] for is_own in own[:len(case['completion'])])
        if '. ' in dots:                        # the world has said something
            below = text.partition(f"{case['completion']!r}\n")[2].split('\n')[0]
            assert below.strip() == dots.strip()


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize('reply', [
    lambda completion: 1 / 0, lambda completion: exit(), lambda completion: 3,
    lambda completion: 'c', lambda completion: ('a', True, 1), lambda completion, column: 'a'])
def test_a_reply_that_fails_is_named_with_its_completion(reply):
    """It raises, or says no text, or what the vocabulary lacks, or asks for what is not there."""
    refused("reply to '", act, tiny(True, V=3, T=4), world(reply, ['a', 'b'], 4, 4))


# ---- runs ----------------------------------------------------------------------------------------


# The world writes the second of three digits. It fails after some calls, while `broken` is there.
FILE = """
import os
from data.arithmetic import texts, verify
_calls = []

def reply(completion, answer='000'):
    _calls.append(1)
    assert len(_calls) < 2125 or not os.path.exists('broken'), 'no more'
    return answer[1] if len(completion) == 1 else None
"""
FLAGS = [f'--generator={EQUATIONS}', '--blank_kind=answer', '--rewards={"verify": 1.0}',
         '--kl_beta=0', '--top_p=0.9', '--epochs=2', '--dtype=float64']


def test_a_run_in_a_world_is_the_same_on_two_ranks_resumed_and_in_sample():
    write('mine.py', FILE)
    flags = [*FLAGS, '--dataset=mine.py', '--max_iters=2', '--eval_interval=1', '--eval_prompts=4']
    train(*flags, out='one')
    train(*flags, '--gradient_accumulation_steps=4', '--batch_size=2', ranks=2, out='two')
    assert (weights('one') - weights('two')).abs().max() < 1e-12
    start, line, *_, end = read_log('one')
    assert 1.5 < line['mean_turns'] <= 2 and line['mean_tokens'] <= 3
    write('broken', '')
    code, text = run(*command(*flags))
    assert code == 1 and "reply to '" in text and 'no more' in text
    assert load_checkpoint('run')['step'] == 1
    os.remove('broken')
    train(*flags, '--resume=True')
    assert_same('run', 'one')
    words = load_checkpoint('run')['words']
    text = succeeds('sample.py', 'run', *words, '--num_samples=1')
    for when, numbers in (('before', start), ('after', end)):
        assert f"{when:9} | verify {numbers['eval/verify']:.3f}" in text
    # a typed prompt has no columns, so the world takes its default
    shown = succeeds('sample.py', 'run', *words, '--prompt=12+35=')
    completions = [text.split("'")[1] for text in shown.splitlines() if ' x ' in text]
    assert completions and all(text[1:2] in ('0', '') for text in completions)


def test_a_config_file_can_bring_the_world_and_the_run_names_it():
    write('mine.py', "def reply(completion):\n    return '7' if len(completion) == 1 else None")
    text = train(*FLAGS, 'mine.py', '--max_iters=1')
    assert 'reply() of mine.py' in text
    for line in open('run/samples.jsonl'):
        assert json.loads(line)['completion'][1:2] in ('7', '')
    assert load_checkpoint('run')['words']


def test_a_world_goes_on_from_prompts_without_answers():
    records = [{'prompt': 'a', 'answer': None}] * 3
    data = Dataset(records, records, TOK, True, reply=lambda completion: 'b', max_new_tokens=3)
    assert data.own_cases(2)[0]['completion'] == '' and data.world_ids == []


def test_a_generator_that_fills_blanks_has_no_turns():
    write('mine.py', "def reply(completion):\n    return None")
    fails('no turns', *command('mine.py', '--rewards={"verify": 1.0}'))
    fails('see config/grpo_world.py', 'train_grpo.py', '--dataset=guess')


@pytest.mark.parametrize('name', ['distance', 'hotcold', 'lock', 'mastermind', 'vending'])
def test_who_does_nothing_wins_no_world(name):
    """In the worlds that we ship. Some of their own games are won."""
    module = runpy.run_path(f'examples/worlds/{name}.py')
    _, games = module['texts']()
    columns = [{column: value for column, value in game.items()
                if column not in ('prompt', 'answer')}
               for game in games]
    assert not any(module['verify']('', **own) for own in columns)
