"""Scores of judges against single sequences; rewards by name, as TRL calls them; printed groups."""
import copy
import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from extras.numbers import last_number, numbers_in, same_number
from run.checkers import is_answer
from dataset import Dataset, Tokenizer
from judge import Scorer, judge_sequences
from processes import refused
from pretrain import complete
from run.samples import letters_of_passes, pieces_of, samples_of, show_group
from test_grpo import TOK, CAUSAL, close, tiny, toy_prompts
from train_grpo import act

IS_CLASSIFIER = pytest.mark.parametrize('is_classifier', [False, True])


def toy_judge(is_classifier):
    return tiny(not is_classifier, is_classifier=is_classifier)


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
            expected = -F.cross_entropy(judge.logits(judge(ids)[chosen]), ids[chosen])
        close(score, expected)


@IS_CLASSIFIER
def test_equal_sequences_are_scored_once_in_parts_and_get_equal_bits_in_float32(
        is_classifier, monkeypatch):
    monkeypatch.setattr('judge.NUMBERS_AT_ONCE', 2 ** 18)
    judge = toy_judge(is_classifier).float()
    sequences = torch.randint(5, (1000, 6)).repeat(2, 1)
    sizes = []
    judge.embed.register_forward_hook(lambda embed, inputs, x: sizes.append(len(inputs[0])))
    with torch.autocast('cpu', torch.bfloat16):
        scores = judge_sequences(judge, sequences, sequences < 5).view(2, 1000)
    assert sum(sizes) == len(sequences.unique(dim=0)) and len(sizes) > 1
    assert scores.dtype == torch.float32 and scores[0].equal(scores[1])


# ---- rewards -------------------------------------------------------------------------------------


@CAUSAL
def test_each_reward_is_what_its_name_says(causal):
    """In fill mode the judge scores whole sequences, in causal mode only completions."""
    r = act(tiny(causal), toy_prompts(causal, k=8)[[0, 0, 1, 2]])
    completions = [case['completion'] for case in r.cases()]

    def verify(prompt, completion):
        return len(prompt + completion) % 7 / 7

    def mine(completions):
        values = torch.tensor([float(text.count('b')) for text in completions], requires_grad=True)
        completions.clear()                     # it must not spoil the lists of others
        return values * 1                       # it has a graph

    judge = toy_judge(False)
    where = r.is_sampled if causal else r.sequences < 7
    groups = r.sequences.view(4, 8, 6).tolist()
    expected = {
        'mine': [text.count('b') for text in completions],
        'again': [text.count('b') for text in completions],
        'verify': [len(case['prompt'] + case['completion']) % 7 / 7 for case in r.cases()],
        'distinct': [1 / group.count(row) for group in groups for row in group],
        'length': [r.is_sampled[n].sum() / 6 for n in range(32)],
        'tokens': [r.is_sampled[n].sum() for n in range(32)],
        'ended': [0 in r.sequences[n, r.is_sampled[n]] for n in range(32)],
        'judge': judge_sequences(judge, r.sequences, where).tolist(),
    }
    scores = Scorer(judge, verify, {'mine': mine, 'again': mine}).score(expected, r)
    for name, values in expected.items():
        assert not scores[name].requires_grad
        close(scores[name], torch.tensor(values).float().view(4, 8), atol=1e-5)


def right(prompts, completions, answer, **kwargs):
    assert kwargs.keys() == {'texts', 'level', 'ended', 'sampled'}
    return [float(completion == text) for completion, text in zip(completions, answer)]


def short(completions, **kwargs):
    assert kwargs.keys() == {'prompts', 'texts', 'answer', 'level', 'ended',
                             'sampled'}
    return np.array([-len(completion) for completion in completions])


def easy(level, completions, scale=2):
    return [scale / number for number in level]


def whole(ended):
    return ended


@pytest.fixture
def rollout_of_records():
    """A Rollout of two prompts, 3 completions each; the records have the column `level`."""
    records = [{'prompt': 'ab', 'answer': 'b', 'level': 1},
               {'prompt': 'a', 'answer': '', 'level': 4, 'prompts': 'x'}]    # rewards get ours
    data = Dataset(records, records, Tokenizer('char', 'abcd'), True, 6, blank_kind='answer')
    return complete(tiny(causal=True), data.prompts('val', 2, 3, 1))


def test_reward_functions_written_for_trl_get_the_columns_that_they_name(rollout_of_records):
    functions = {'right': right, 'short': short, 'easy': easy, 'whole': whole,
                 'prompts_of': lambda prompts: list(map(len, prompts))}
    scorer = Scorer(verify=is_answer, functions=functions)
    scores = scorer.score(['verify', *functions], rollout_of_records)
    for n, case in enumerate(rollout_of_records.cases()):
        answer, level = {'ab': ('b', 1), 'a': ('', 4)}[case['prompt']]
        completion = case['completion']
        is_right = completion == answer
        values = [values.flatten()[n] for values in scores.values()]
        ids = rollout_of_records.sequences[n, rollout_of_records.is_sampled[n]]
        assert values == [is_right, is_right, -len(completion), 2 / level, 0 in ids,
                          len(case['prompt'])]


def interrupt(prompts):
    raise KeyboardInterrupt


FAILURES = {                # of a function of a whole list, that can name no completion
    "asks for {'colour'}: there are .*'completions'": lambda completions, colour: [],
    'has it a `return`': lambda prompts: None,
    'expected 6 numbers, one for each completion, not 5': lambda prompts: [1.0] * 5,
    'ZeroDivisionError': lambda prompts: 1 / 0,
    'SystemExit': lambda prompts: sys.exit(),
    'KeyboardInterrupt': interrupt,
}


@pytest.mark.parametrize('words', FAILURES)
def test_a_reward_that_fails_is_named(words, rollout_of_records):
    """The error keeps its cause, which knows the line of the function."""
    with pytest.raises(AssertionError, match=f"^reward 'mine': .*{words}") as error:
        Scorer(functions={'mine': FAILURES[words]}).score(['mine'], rollout_of_records)
    assert type(error.value.__cause__).__name__ in str(error.value)


@pytest.mark.parametrize('value', ['1', math.nan, -math.inf, 1e39, 1j, 'raises'], ids=repr)
def test_a_value_that_is_no_finite_number_is_named_with_its_completion(value, rollout_of_records):
    """The third, in a list, or when a checker comes to it. A checker can raise, too."""
    values = [1.0, 1.0, value, 1.0, 1.0, 1.0]
    left = iter(values)

    def verify(completion):
        number = next(left)
        return 1 / 0 if number == 'raises' else number

    scorer = Scorer(verify=verify, functions={'mine': lambda prompts: values})
    case = rollout_of_records.cases()[2]
    of = f"{case['completion']!r}, prompt {case['prompt']!r}"
    for name in ('verify', 'mine'):
        refused(f"reward '{name}' of {of}: ", scorer.score, [name], rollout_of_records)


def test_none_and_what_an_array_masks_are_missing_values(rollout_of_records):
    values = [None, 2.0, None, 1.0, 3.0, None]
    masked = np.ma.masked_array([2.0] * 6, mask=[value is None for value in values])
    scorer = Scorer(functions={'mine': lambda prompts: values, 'masked': lambda prompts: masked})
    scores = scorer.score(['mine', 'masked'], rollout_of_records)
    for numbers in scores.values():
        assert numbers.flatten().isnan().tolist() == [value is None for value in values]
    assert scores['mine'].nansum() == scores['masked'].nansum() == 6


def test_a_missing_value_is_null_in_samples_and_none_on_the_console(capsys):
    r = act(tiny(), toy_prompts(k=3))
    values = torch.tensor([math.nan, 1.5, 0.5])
    samples = samples_of(r, {'mine': values}, range(3))
    assert [sample['scores']['mine'] for sample in samples] == [None, 1.5, 0.5]
    show_group('here', samples)
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == ['1.500', '0.500', 'none']


def test_a_run_watches_the_verifier_unless_it_has_a_reward_of_your_own():
    mine = {'mine': right}
    assert Scorer(verify=right, functions=mine).goal({'judge': 1.0}) == 'verify'
    assert Scorer(verify=right, functions=mine).goal({'mine': 1.0}) == 'reward'
    assert Scorer().goal({'judge': 1.0}) == 'reward'


# ---- checkers ------------------------------------------------------------------------------------


NUMBERS = {                 # a text, and its numbers as people read them
    'x=8,12': [8, 12], 'so 8,12 remain': [8, 12], '1,234': [1234], '$1,234.50.': [1234.5],
    '12,345,678 of 1,000': [12345678, 1000], '1,23 and 1234,567': [1, 23, 1234, 567],
    '8,12,345': [8, 12, 345], '0,5': [0, 5],
    'pages 10-12': [10, 12], '10 - 12': [10, 12], 'it is \u22125': [-5], '3 - -5=8': [3, -5, 8],
    '-$5, x=-5; (-5) {-5} **-5**': 5 * [-5], 'x-5, (2)-5, 50%-5': [5, 2, 5, 50, 5], 'no--5': [5],
    '.5 or -.5, x.5 (7.)': [.5, -.5, 5, 7], '3.14.15': [3.14, 15], 'wait...5': [5],
    '3/4 of 12/25/2023, 1/0': [.75, 12, 25, 2023, 1, 0], '50 % and 50%': [50, 50],
    '1e-3 2E5': [.001, 200000], 'no number': [], '007': [7], '12+35=047': [12, 35, 47],
    '3h05m': [3, 5], '#### 34': [34], '\u20ac5': [5], '9' * 30: [10 ** 30 - 1],
}


def test_an_answer_is_the_same_however_its_accents_are_written():
    assert is_answer(' cafe\u0301', 'caf\u00e9') == 1 and is_answer('cafe', 'caf\u00e9') == 0


@pytest.mark.parametrize('text', NUMBERS)
def test_numbers_are_read_as_people_read_them(text):
    numbers = NUMBERS[text]
    assert numbers_in(text) == numbers
    assert not numbers or last_number(text) == numbers[-1]


@pytest.mark.parametrize('completion, answer, score', [
    ('34', 'First 30, then 4 more.\n#### 34', 1), ('0.75', '3/4', 1), ('none', 'none', 0),
    ('9' * 9999, '9', 0), ('9' * 9999 + '/7', '9' * 9999 + '/7', 1),
    ('12345678901234567890', '12345678901234567891', 0)])
def test_two_texts_have_the_same_number_if_they_end_with_it(completion, answer, score):
    assert same_number(completion, answer) == score


# ---- words and numbers for people ----------------------------------------------------------------


def test_a_group_shows_its_best_its_worst_and_how_often_each_came(capsys):
    r = act(tiny(), toy_prompts(k=30))
    rows = range(90, 120)                       # of the prompt with the most blanks
    completions = [case['completion'] for case in r.cases()]
    counts = torch.tensor([completions[90:].count(text) for text in completions])
    completions = completions[90:]
    show_group('here', samples_of(r, {'reward': counts, 'other': 0 * counts}, rows))
    _, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    expected = sorted({(completions.count(text), repr(text)) for text in completions}, reverse=True)
    assert len(expected) > 6
    shown = [(int(line[0]), line[-1]) for line in lines]
    assert shown == expected[:3] + expected[-3:]


@CAUSAL
@pytest.mark.parametrize('pieces', [list('\nabcd_'), ['\n', 'x', b'\xc3', b'\xa9', '\n', '_']])
def test_a_completion_is_put_together_from_given_text_and_tokens(causal, pieces):
    """Also if two tokens make a character, or half of one, which is shown as in the completion."""
    prompts = toy_prompts(causal, k=100)
    tok = copy.copy(TOK)
    tok.pieces = [piece if type(piece) is bytes else piece.encode() for piece in pieces]
    tok.pieces += [b'', b'']                    # bos, padding
    prompts.data.tok = tok
    r = complete(tiny(causal), prompts, **{} if causal else {'n_fill_steps': 3})
    n_whole = 0
    for n, case in enumerate(r.cases()):
        text, pieces = pieces_of(r, n, [r.logp_sampled])
        assert text == case['completion']
        tokens = [piece for piece in pieces if type(piece) is list]
        assert ''.join(piece if type(piece) is str else piece[0] for piece in pieces) == text
        assert [logp for *_, logp in tokens] == r.logp_sampled[n][r.is_sampled[n]].tolist()
        passes = [0] * len(tokens) if causal else (1 + r.pass_of[n][r.is_sampled[n]]).tolist()
        assert [i for _, i, _ in tokens] == passes
        n_whole += 'é' in [token[0] for token in tokens]
        if tok.pieces[2] == b'b':               # a character is a token
            letters = ''.join(' 123456'[i] for i in (r.pass_of[n] + 1).tolist()[:len(text)])
            assert causal or letters_of_passes(pieces) == letters
    assert (n_whole > 0) == (tok.pieces[2] != b'b')
