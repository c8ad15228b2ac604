"""The judge: its scores are the mean log-probability, or the pooled head's, whatever else is in the
batch; it learns; its labels and its AUC; rewards by name, and functions of the user's."""
import glob
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import judge
from data.dataset import Dataset, Prompts, Tokenizer
from judge import (Judge, Scorer, auc, check_rewards, classifier_loss, labelled_examples,
                   load_judge, read_labels)
from model import Rollout
from processes import SMALL, refused, run

KINDS = pytest.mark.parametrize('kind', ['likelihood', 'classifier'])


def tiny(kind, V=5, T=6):
    """A Judge in float64 all of whose weights matter."""
    one = Judge(kind, vocab_size=V, block_size=T, n_layer=1, n_head=2, n_embd=8,
                causal=kind == 'likelihood').double()
    for p in one.parameters():
        nn.init.normal_(p, std=0.5)
    return one


def padded_rows():
    """Rows of 1 to 6 ids, twice each."""
    rows = torch.randint(5, (6, 6))
    return rows.masked_fill(torch.arange(6) > torch.arange(6)[:, None], 7).repeat(2, 1)


# ---- scores, and training ------------------------------------------------------------------------


@KINDS
def test_a_score_is_that_of_the_row_alone_without_its_padding(kind):
    one = tiny(kind)
    rows = padded_rows()
    for row, score in zip(rows, one.score(rows)):
        ids = row[row != 7]                                                     # (length,)
        if kind == 'likelihood':
            logp = [one.gpt(ids[None, :t + 1])[0, t].log_softmax(0)[i] for t, i in enumerate(ids)]
            expected = sum(logp) / len(logp)
        else:
            expected = one.gpt.head(one.gpt.trunk(ids[None])[0].mean(0))[0].sigmoid()
        assert score.item() == pytest.approx(expected.item())


@KINDS
def test_equal_rows_are_scored_once_and_get_equal_bits_in_float32(kind):
    one = tiny(kind).float()
    rows = padded_rows()
    seen = []
    one.gpt.embed.register_forward_hook(lambda embed, inputs, x: seen.append(len(inputs[0])))
    one.gpt.head.register_forward_hook(lambda head, inputs, x: seen.append(x.dtype))
    with torch.autocast('cpu', torch.bfloat16):
        scores = one.score(rows)
    assert seen == [len(rows.unique(dim=0)), torch.float32]
    assert torch.equal(scores[:6], scores[6:])


def test_the_loss_of_a_classifier_is_binary_cross_entropy(monkeypatch):
    monkeypatch.setattr(judge, 'dtype', 'float64')
    one = tiny('classifier')
    rows = padded_rows()
    marks = torch.rand(12).double()
    p = one.score(rows).double()
    nats = -marks * p.log() - (1 - marks) * (1 - p).log()
    loss = classifier_loss(one, rows, marks)
    assert loss.item() == pytest.approx(nats.mean().item(), rel=1e-5)


@pytest.fixture
def labels(tmp_path):
    """A file of 60 texts, of which those with an end like 7= have the label 1."""
    text = ''.join(f'{{"text": "{n}+", "label": 0}}\n{{"text": "{n}=", "label": 1}}\n'
                   for n in range(30))
    (tmp_path / 'labels.jsonl').write_text(text)
    return str(tmp_path / 'labels.jsonl')


@pytest.mark.parametrize('flags', ['', '--kind=classifier', '--kind=classifier --labels='])
def test_a_judge_learns_to_tell(flags, here, labels, tmp_path):
    """By likelihood, real equations from garbled ones; from generated ones; or by label."""
    words = f'config/judge_{SMALL} --max_iters=150 --out={tmp_path}/judge.pt {flags}'
    words = words.replace('--labels=', f'--labels={labels}').split()
    made = glob.glob('out/generator_arithmetic-*.pt')[0]
    code, text = run(here, 'judge.py', *words, f'--generator_checkpoint={made}')
    found = float(re.search(r'held-out AUC (\S+)', text)[1])
    assert code == 0 and found > 0.6
    one = load_judge(f'{tmp_path}/judge.pt', Dataset('arithmetic'))
    assert one.kind in text and not any(p.requires_grad for p in one.parameters())


def test_labelled_texts_are_read_and_a_tenth_is_never_trained_on(labels, monkeypatch):
    monkeypatch.setattr(judge, 'block_size', 4)
    tok = Tokenizer('char', '0123456789+=')
    rows, marks = read_labels(labels, tok)
    assert rows[14:16].tolist() == [[8, 11, tok.pad, tok.pad], [8, 12, tok.pad, tok.pad]]
    assert marks.tolist() == [0, 1] * 30
    rng = np.random.default_rng(0)
    train, _ = labelled_examples(rows, marks, 'train', 999, rng)
    held_out, _ = labelled_examples(rows, marks, 'val', 0, rng)
    assert len(train.unique(dim=0)) == 54
    assert len(torch.cat((train, held_out)).unique(dim=0)) == 60


@pytest.mark.parametrize('bad', [
    'garbage', '{"text": "1+1=2"}', '{"text": "1+1=2", "label": 2}', '{"text": "x", "label": 0}',
    '{"text": "", "label": 0}', '["1+1=2", 0]', '{"text": "1+1=2", "label": NaN}'])
def test_a_bad_line_of_labels_is_named(bad, labels):
    with open(labels, 'a') as file:
        file.write(bad)
    refused(['labels.jsonl, line 61'], read_labels, labels, Tokenizer('char', '0123456789+='))


def test_auc_is_the_share_of_pairs_in_order():
    scores = np.random.default_rng(0).integers(6, size=40)      # with many ties
    labels = np.arange(40) % 3 == 0
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels] for b in scores[~labels]]
    assert auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))
    assert auc([2, 1], [True, True]) == 0.5


# ---- rewards -------------------------------------------------------------------------------------


@pytest.fixture
def corpus(here):
    return Dataset('arithmetic')


def completed(corpus):
    """A Rollout: the answers of 1+1=2, twice, and 2+3=5, and what ends them, were written twice."""
    tok = corpus.tok
    rows = torch.tensor([tok.encode(text) + [tok.eos, tok.pad] for text in (
        '1+1=2', '1+1=2', '1+1=2', '1+1=3', '2+3=5', '2+3=6')])
    mask = torch.tensor([0, 0, 0, 0, 1, 1, 0]).bool().expand(6, 7)
    prompts = Prompts(rows[::2], mask[::2], torch.zeros(3, 7, 2), tok.eos)
    owner = mask.nonzero()[:, 0]
    return Rollout(prompts, rows, rows, None, owner, None, None, None, None, None, causal=True)


def test_each_reward_is_what_its_name_says_in_its_place(corpus):
    cases = [('1+1=', '2', '2'), ('1+1=', '2', '2'), ('1+1=', '2', '2'), ('1+1=', '3', '2'),
             ('2+3=', '5', '5'), ('2+3=', '6', '5')]
    asked = []

    def is_right(prompt, completion, original):
        asked.append((prompt, completion, original))
        return completion == original

    def mine(prompts, completions, originals):
        assert [*zip(prompts, completions, originals)] == cases
        prompts.clear()                         # it must not spoil the lists of others
        return np.array([int(text) for text in completions])

    corpus.verify = is_right
    one = tiny('likelihood', corpus.tok.base, 7)
    r = completed(corpus)
    names = ['mine', 'verify', 'again', 'distinct', 'length', 'judge']
    scores = Scorer(corpus, one, {'mine': mine, 'again': mine}).score(names, r)
    assert list(scores) == names
    assert scores['mine'].tolist() == scores['again'].tolist() == [[2, 2], [2, 3], [5, 6]]
    assert scores['verify'].tolist() == [[1, 1], [1, 0], [1, 0]]
    assert sorted(asked) == sorted(set(cases))  # each case once
    assert scores['distinct'].tolist() == [[0.5, 0.5], [1, 1], [1, 1]]
    assert scores['length'].unique().item() == pytest.approx(2 / 7)
    assert torch.equal(scores['judge'].flatten(), one.score(r.rows))


def test_rewards_about_the_group_are_known(corpus):
    def mine(prompts, completions):
        """Compares."""

    mine.about_group = True
    scorer = Scorer(corpus, None, {'mine': mine, 'other': len})
    assert scorer.about_group == {'distinct', 'mine'}


@pytest.mark.parametrize('name, value, names', [
    ('mine', [1.0] * 5, ['[1.0, 1.0']), ('mine', ['1'] * 6, ['str']), ('mine', None, ['None']),
    ('mine', ValueError('so'), ['ValueError: so']),
    ('mine', [0.0] * 5 + [math.nan], ['finite', '2+3=']),
    ('mine', [math.inf] + [0.0] * 5, ['finite', '1+1=']),
    ('verify', 2, ['2', '1+1=']), ('verify', ValueError('so'), ['ValueError: so', '1+1='])])
def test_a_function_that_misbehaves_is_named_with_a_prompt(name, value, names, corpus):
    def function(prompt, completion):
        if isinstance(value, BaseException):
            raise value
        return value

    corpus.verify = function
    refused([name, '+', *names], Scorer(corpus, None, {'mine': function}).score, [name],
            completed(corpus))


@pytest.mark.parametrize('rewards, functions, names', [
    ({}, {}, ['{}']), ({'jugde': 1.0}, {'mine': len}, ['jugde', 'judge', 'mine']),
    ({'judge': '1'}, {}, ["'judge'"]), ({'judge': True}, {}, ["'judge'"]),
    ({'judge': 1.0}, {'verify': len}, ["'verify'"])])
def test_rewards_are_known_names_with_numbers(rewards, functions, names):
    check_rewards({'judge': 1, 'mine': -0.5}, {'mine': len})
    refused(names, check_rewards, rewards, functions)
