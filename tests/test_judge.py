"""Scores of judges against single sequences; rewards by name; AUC; the verdict; printed groups."""
import math

import numpy as np
import pytest
import torch
from torch import nn

from data.dataset import BLANK, Prompts, Tokenizer
from judge import Scorer, auc, classify, judge_sequences, show_groups, verdict
from model import GPT, Rollout

TOK = Tokenizer('char', '0123456789+=')
IS_CLASSIFIER = pytest.mark.parametrize('is_classifier', [False, True])


def tiny(is_classifier, V=5, T=6):
    """Return a judge in float64 all of whose weights matter."""
    judge = GPT(V, T, 1, 2, 8, not is_classifier, n_outputs=int(is_classifier)).double()
    for p in judge.parameters():
        nn.init.normal_(p, std=0.5)
    return judge


def padded_sequences():
    """Return sequences of 1 to 6 ids, twice each."""
    sequences = torch.randint(5, (6, 6))
    return sequences.masked_fill(torch.arange(6) > torch.arange(6)[:, None], 7).repeat(2, 1)


@IS_CLASSIFIER
def test_a_score_is_that_of_the_single_sequence_without_its_padding(is_classifier):
    """A likelihood counts the tokens that it is asked for: all of them, or the completion's."""
    judge = tiny(is_classifier)
    sequences = padded_sequences()
    for where in (sequences != 7, (sequences != 7) & (torch.arange(6) >= 0).int().cumsum(0).bool()):
        for sequence, chosen, score in zip(sequences, where,
                                           judge_sequences(judge, sequences, where)):
            ids = sequence[sequence != 7]                                       # (length,)
            if is_classifier:
                expected = judge.head(judge.trunk(ids[None])[0].mean(0))[0].sigmoid()
            else:
                every = torch.ones(1, len(ids), dtype=torch.bool)
                logp = judge(ids[None], every).log_softmax(-1)[range(len(ids)), ids]
                expected = logp[chosen[:len(ids)]].mean()
            assert score.item() == pytest.approx(expected.item())


def test_a_likelihood_of_completions_does_not_count_their_prompts():
    judge = tiny(False)
    sequences = torch.randint(5, (1, 6))
    where = torch.arange(6)[None] >= 4
    logp = judge(sequences, where).log_softmax(-1)[[0, 1], sequences[0, 4:]]
    assert judge_sequences(judge, sequences, where).item() == pytest.approx(logp.mean().item())


@IS_CLASSIFIER
def test_equal_sequences_are_scored_once_and_get_equal_bits_in_float32(is_classifier):
    judge = tiny(is_classifier).float()
    sequences = padded_sequences()
    sizes = []
    judge.embed.register_forward_hook(lambda embed, inputs, x: sizes.append(len(inputs[0])))
    with torch.autocast('cpu', torch.bfloat16):
        scores = judge_sequences(judge, sequences, sequences != 7)
    assert sizes == [len(sequences.unique(dim=0))] and scores.dtype == torch.float32
    assert torch.equal(scores[:6], scores[6:])


def test_a_great_many_sequences_are_scored_in_chunks_of_the_same_values():
    judge = tiny(True)
    sequences = torch.randint(5, (3000, 6))
    sizes = []
    judge.embed.register_forward_hook(lambda embed, inputs, x: sizes.append(len(inputs[0])))
    scores = judge_sequences(judge, sequences, sequences != 7)
    assert len(sizes) > 1
    torch.testing.assert_close(scores, classify(judge, sequences).sigmoid())


def test_auc_is_the_share_of_pairs_in_order():
    scores = torch.randint(6, (40,))            # with many ties
    labels = torch.arange(40) % 3 == 0
    pairs = [(a > b).item() + (a == b).item() / 2 for a in scores[labels] for b in scores[~labels]]
    assert auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))
    assert auc(torch.tensor([2, 1]), torch.tensor([True, True])) == 0.5


# ---- rewards -------------------------------------------------------------------------------------


def completed():
    """Return a Rollout: the answers of 1+1=2, twice, and 2+3=5 were generated, twice each."""
    sequences = torch.tensor([TOK.encode(text) + [TOK.eos, TOK.pad] for text in (
        '1+1=2', '1+1=2', '1+1=2', '1+1=3', '2+3=5', '2+3=6')])
    mask = torch.tensor([0, 0, 0, 0, 1, 1, 0]).bool().expand(6, 7)
    prompts = Prompts(sequences[::2], mask[::2], sequences[::2], torch.zeros(3, 2, 7), None, TOK)
    sequence_of, position = mask.nonzero(as_tuple=True)
    return Rollout(prompts, sequences, sequences, mask, sequence_of, position, torch.arange(12),
                   sequences[mask], None, causal=True)


def test_each_reward_is_what_its_name_says():
    cases = [('1+1=', '2', '2'), ('1+1=', '2', '2'), ('1+1=', '2', '2'), ('1+1=', '3', '2'),
             ('2+3=', '5', '5'), ('2+3=', '6', '5')]
    calls = []

    def is_right(prompt, completion, original):
        calls.append((prompt, completion, original))
        return completion == original

    def mine(prompts, completions, originals):
        assert [*zip(prompts, completions, originals)] == cases
        prompts.clear()                         # it must not spoil the lists of others
        return np.array([int(text) for text in completions])

    judge = tiny(False, TOK.vocab_size, 7)
    policy, reference = tiny(False, TOK.vocab_size, 7), tiny(False, TOK.vocab_size, 7)
    r = completed()
    functions = {'mine': mine, 'again': mine, 'short': lambda prompts, texts: torch.ones(6)}
    scorer = Scorer(judge, is_right, functions, policy, reference, temperature=0.7)
    names = ['mine', 'verify', 'again', 'short', 'distinct', 'length', 'judge', 'kl']
    scores = scorer.score(names, r)
    assert list(scores) == names and all(values.shape == (3, 2) for values in scores.values())
    assert scores['mine'].tolist() == scores['again'].tolist() == [[2, 2], [2, 3], [5, 6]]
    assert scores['verify'].tolist() == [[1, 1], [1, 0], [1, 0]]
    assert sorted(calls) == sorted(set(cases))  # each case once
    assert scores['distinct'].tolist() == [[0.5, 0.5], [1, 1], [1, 1]]
    assert scores['length'].unique().item() == pytest.approx(2 / 7)
    expected = judge_sequences(judge, r.sequences, r.where)
    torch.testing.assert_close(scores['judge'].flatten().double(), expected)
    logp, logp_ref = [(model(r.sequences, r.where) / 0.7).log_softmax(-1)[range(12), r.actions]
                      for model in (policy, reference)]
    torch.testing.assert_close(scores['kl'].flatten().double(), r.sum(logp - logp_ref),
                               atol=1e-5, rtol=1e-5)


def test_a_fill_judge_scores_whole_sequences_without_their_padding():
    r = completed()
    r.causal = False
    judge = tiny(False, TOK.vocab_size, 7)
    scores = Scorer(judge).score(['judge'], r)['judge'].flatten().double()
    torch.testing.assert_close(scores, judge_sequences(judge, r.sequences, r.sequences != TOK.pad))


@pytest.mark.parametrize('values, words', [
    ([1.0] * 5, '1.0, 1.0.*expected 6'), ([0.0] * 5 + [math.nan], 'nan.*finite'),
    ([math.inf] + [0.0] * 5, 'inf.*finite')])
def test_a_function_that_returns_something_else_is_named(values, words):
    with pytest.raises(AssertionError, match=f"'mine'.*{words}"):
        Scorer(functions={'mine': lambda prompts, completions: values}).score(['mine'], completed())


def test_the_goal_is_verify_unless_a_reward_is_your_own():
    scorer = Scorer(verify=len, functions={'mine': len, 'unused': len})
    assert scorer.goal({'judge': 1.0}) == scorer.goal({'verify': 1.0}) == 'verify'
    assert scorer.goal({'verify': 1.0, 'mine': 0.0}) == 'reward'
    assert Scorer().goal({'judge': 1.0}) == 'reward'


# ---- words and numbers for people ----------------------------------------------------------------


@pytest.mark.parametrize('now, training, words', [
    (0.1, 0.3, 'below always giving the commonest answer'),
    (0.6, 1.0, 'memorised'), (0.95, 1.0, 'above the line to beat'),
    (0.6, 0.7, 'above the line to beat'), (0.45, 0.5, 'below the line to beat'),
    (0.25, 0.3, 'not better than at the start')])
def test_the_verdict_says_in_words_whether_a_run_worked(now, training, words):
    numbers = {'verify': now, 'training': training, 'start': 0.3, 'line to beat': 0.5}
    assert words in verdict(numbers | {'constant answer': 0.2})
    assert verdict({'reward': -1.0, 'training': 3.0, 'start': -2.0, 'line to beat': -1.5}) == (
        'above the line to beat')


def test_a_group_shows_its_best_first_and_how_often_each_came(capsys):
    tok = Tokenizer('char', 'ab')
    sequences = torch.tensor([[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [1, 1, 1]])
    prompts = Prompts(sequences[:1], torch.tensor([[False, True, True]]), sequences[:1],
                      torch.zeros(1, 5, 3), None, tok)
    r = Rollout(prompts, sequences, None, None, None, None, None, None, None, causal=True)
    score = -sequences.sum(1).float()
    samples = show_groups('here', r, {'score': score[None]}, max_rows=3)
    assert len(samples) == 5
    assert samples[4] == {'prompt': 'a', 'completion': 'aa', 'score': -3}
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ['here', 'score', "'a'"] and len(lines) == 3
    assert lines[0].split() == ['2', 'x', '-3.000', "'aa'"]
    assert {line.split()[-1] for line in lines[1:]} == {"'ab'", "'ba'"}
    assert BLANK not in head
