"""Scores of judges against single sequences; rewards by name; AUC; the verdict; printed groups."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from judge import Scorer, auc, judge_sequences, show_groups, verdict
from test_grpo import CAUSAL, close, tiny, toy_prompts
from train_grpo import rollout

IS_CLASSIFIER = pytest.mark.parametrize('is_classifier', [False, True])


def toy_judge(is_classifier):
    return tiny(not is_classifier, n_outputs=int(is_classifier))


@IS_CLASSIFIER
def test_a_score_is_that_of_the_single_sequence_without_its_padding(is_classifier):
    """A likelihood counts the tokens that it is asked for: the completion's."""
    judge = toy_judge(is_classifier)
    sequences = torch.randint(5, (6, 6)).masked_fill(torch.ones(6, 6).triu(1) > 0, 7)
    where = (sequences != 7) & (torch.rand(6, 6) < 0.5) | torch.eye(6).bool()
    for n, score in enumerate(judge_sequences(judge, sequences, where)):
        ids = sequences[[n], :n + 1]
        chosen = where[[n], :n + 1]
        if is_classifier:
            expected = judge.head(judge.trunk(ids).mean(1)).sigmoid()[0, 0]
        else:
            expected = -F.cross_entropy(judge(ids, chosen), ids[chosen])
        close(score, expected)


@IS_CLASSIFIER
def test_equal_sequences_are_scored_once_in_parts_and_get_equal_bits_in_float32(is_classifier):
    judge = toy_judge(is_classifier).float()
    sequences = torch.randint(5, (1000, 6)).repeat(2, 1)
    sizes = []
    judge.embed.register_forward_hook(lambda embed, inputs, x: sizes.append(len(inputs[0])))
    with torch.autocast('cpu', torch.bfloat16):
        scores = judge_sequences(judge, sequences, sequences < 5)
    assert sum(sizes) == len(sequences.unique(dim=0)) and len(sizes) > 1
    assert scores.dtype == torch.float32 and scores[:1000].equal(scores[1000:])


def test_auc_is_the_share_of_pairs_in_order():
    scores = torch.randint(6, (40,))            # with many ties
    labels = torch.arange(40) % 3 == 0
    pairs = [(one > zero) + 0.5 * (one == zero)
             for one in scores[labels].tolist() for zero in scores[~labels].tolist()]
    assert auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))
    assert auc(scores, labels | True) == 0.5


# ---- rewards -------------------------------------------------------------------------------------


@CAUSAL
def test_each_reward_is_what_its_name_says(causal):
    """In fill mode the judge scores whole sequences, in causal mode only completions."""
    r = rollout(tiny(causal), toy_prompts(causal, k=8)[[0, 0, 1, 2]])
    cases = list(zip(*r.texts()))
    calls = []

    def verify(prompt, completion, original):
        calls.append((prompt, completion, original))
        return len(completion)

    def mine(prompts, completions):
        assert list(zip(prompts, completions)) == [case[:2] for case in cases]
        prompts.clear()                         # it must not spoil the lists of others
        return np.array([text.count('b') for text in completions])

    judge = toy_judge(False)
    expected = {
        'mine': [text.count('b') for _, text, _ in cases],
        'verify': [len(text) for _, text, _ in cases],
        'distinct': [1 / group.count(row) for group in r.sequences.view(4, 8, 6).tolist()
                     for row in group],
        'length': [(r.sequence_of == n).sum() / 6 for n in range(32)],
        'judge': judge_sequences(judge, r.sequences,
                                 r.where if causal else r.sequences < 7).tolist(),
    }
    scores = Scorer(judge, verify, {'mine': mine}).score(expected, r)
    for name, values in expected.items():
        assert scores[name].shape == (4, 8)
        close(scores[name].flatten(), torch.tensor(values).float(), atol=1e-5)
    assert sorted(calls) == sorted(set(cases))  # each case once


# ---- words and numbers for people ----------------------------------------------------------------


@pytest.mark.parametrize('now, training, words', [
    (0.1, 0.3, 'below always giving the commonest answer'),
    (0.6, 1.0, 'memorised'), (0.95, 1.0, 'above the line to beat'),
    (0.6, 0.7, 'above the line to beat'), (0.51, 0.5, 'more certain'),
    (0.45, 0.5, 'more certain'), (0.31, 0.39, 'not better than at the start')])
def test_the_verdict_says_in_words_whether_a_run_worked(now, training, words):
    numbers = {'verify': now, 'start': 0.3, 'line to beat': 0.5, 'standard error': 0.01,
               'constant answer': 0.2}
    scores = torch.linspace(0, 1, 64)[:, None].le(training).float()     # of 64 training prompts
    assert words in verdict(numbers, {}, scores)
    assert ('memorised' in verdict(numbers, {}, scores)) == (words == 'memorised')
    numbers |= {'start': 0.96, 'constant answer': 0.0}      # samples can beat greedy decoding
    assert 'above' not in verdict(numbers, {})
    assert ('knew the task already' in verdict(numbers, {})) == (now == 0.95)
    assert ('worse than at the start' in verdict(numbers, {})) == (now < 0.95)
    numbers |= {'verify': 0.02, 'start': 0.0, 'line to beat': 0.01}
    assert 'partial credit' in verdict(numbers, {})
    at_start = {'verify': 0.0, 'small': 0.4, 'judge': 1.0}
    assert verdict(numbers | {'small': 0.1}, at_start).endswith('(small 0.400 -> 0.100)')


def test_a_group_shows_its_best_its_worst_and_how_often_each_came(capsys):
    r = rollout(tiny(), toy_prompts(k=30))
    _, completions, _ = r.texts()
    score = torch.tensor([completions[:30].count(text) for text in completions]).view(4, 30)
    columns = {'score': score, 'advantage': score - score[:, :1]}
    show_groups('here', r, columns, n_groups=1, max_rows=2)
    _, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(line[0]) for line in lines] == [score[0].max(), score[0].min()]
    show_groups('here', r, {'reward': score.float(), 'advantage': 0 * score})
    assert '100% of the groups have equal rewards' in capsys.readouterr().out


def test_a_reward_of_one_parameter_is_refused():
    scorer = Scorer(functions={'mine': lambda completions: [0.0] * len(completions)})
    with pytest.raises(AssertionError, match=r'mine\(\): expected parameters for prompts'):
        scorer.score(['mine'], rollout(tiny(), toy_prompts()))


@pytest.mark.parametrize('values', [None, ['a'] * 12])
def test_a_reward_that_returns_no_numbers_is_named(values):
    scorer = Scorer(functions={'mine': lambda prompts, completions: values})
    with pytest.raises(ValueError, match="reward 'mine': expected numbers"):
        scorer.score(['mine'], rollout(tiny(), toy_prompts()))
