"""Classifier judges, what they learn from, the KL as a reward, and its controller."""
import math
import signal
import string
from types import SimpleNamespace

import pytest
import torch

import pretrain
import train_grpo as grpo
from configurator import configure
from conftest import CPU, assert_same, log_of, run, train
from data import docstrings, failure_labels, failures
from judge import judge_scores
from model import load_network
from tasks import Task
from test_grpo import close, knobs, outcomes, prompts_of, tiny        # noqa: F401, a fixture
from test_runs import SIGNAL


# ---- scores --------------------------------------------------------------------------------------


def test_a_classifier_gives_the_probability_of_the_single_text_without_padding(knobs):
    """Equal texts have equal scores to the last bit."""
    judge = tiny().requires_grad_(False)
    judge.head.weight[1:] = 0
    texts = ['abca\n', 'b\n', 'abcc\n', 'abca\n', 'a\nbc\n'] * 5
    rows = prompts_of(*texts).tokens
    for text, ids, score in zip(texts, rows, judge_scores(judge, rows)):
        x = judge.trunk(ids[None, :len(text)])[0].mean(0)
        close(score, 1 / (1 + math.exp(-x @ judge.head.weight[0])))
    exact = judge.logits
    judge.logits = lambda x: exact(x) + 1e-9 * torch.rand(*x.shape[:2], 4)      # as rounding does
    assert len(set(judge_scores(judge, rows).tolist())) == len(set(texts))


def test_a_network_that_fills_blanks_is_no_judge(knobs):
    with pytest.raises(AssertionError):
        judge_scores(tiny(), prompts_of('abc').tokens)


# ---- what a classifier learns --------------------------------------------------------------------


def train_classifier(file, out, more=''):
    lines = [f'{{"prompt": "{i:03}", "label": {i // 500}}}\n' for i in range(1000)]
    dataset = file('labels.jsonl', ''.join(lines) + more)
    return run('pretrain.py', 'config/networks/judge_smoke.py', '--kind=classifier', *CPU,
               f'--dataset={dataset}', f'--out={out}')


def test_a_classifier_learns_the_labels_of_records(file, tmp_path):
    code, _, error = train_classifier(file, tmp_path / 'judge.pt')
    assert code == 0, error
    judge, tok, _ = load_network(tmp_path / 'judge.pt', 'cpu')
    rows = torch.tensor([tok.encode(f'{i:03}\n') for i in range(1000)])
    is_right = (judge_scores(judge, rows) > 0.5) == (torch.arange(1000) >= 500)
    assert is_right.float().mean() > 0.9


@pytest.mark.parametrize('label', ['', ', "label": 2', ', "label": "1"'])
def test_a_record_without_a_label_is_refused_in_one_line(label, file, tmp_path):
    code, _, error = train_classifier(file, tmp_path / 'judge.pt', f'{{"prompt": "7"{label}}}')
    assert code == 1 and error.count('\n') == 1 and 'labels.jsonl' in error


def test_half_of_the_texts_are_real_and_half_are_the_same_filled_by_the_generator(
        folder, file, knobs):
    torch.set_default_dtype(torch.float32)
    path, dataset = f'{folder}/generator.pt', f'{folder}/equations.py'
    recipe = f"include('config/networks/judge_classifier.py')\nFILLER = {path!r}"
    configure(vars(pretrain), [file('mine.py', recipe), f'--dataset={dataset}'])
    pretrain.torch_device = 'cpu'
    filler, tok, _ = load_network(path, 'cpu')
    prompts = Task(dataset, tok).prompts('train', 2000)
    texts, labels = pretrain.labelled(prompts)
    configure(vars(pretrain), [])
    real, filled = texts.split(2000)                                            # (2000, T) each
    assert labels.tolist() == 2000 * [1] + 2000 * [0] and real.equal(prompts.tokens)
    assert real[~prompts.blank].equal(filled[~prompts.blank])
    # As many blanks as the filler's probabilities say are as they were.
    x = filler(real.masked_fill(prompts.blank, tok.blank))[prompts.blank]
    real, filled = real[prompts.blank], filled[prompts.blank]
    p = filler.logits(x).softmax(1).gather(1, real[:, None])
    assert abs(p.mean() - (real == filled).float().mean()) < 0.02


def test_pieces_of_docstrings_are_labelled_and_prompts_end_before_a_word_of_failure(monkeypatch):
    text = string.ascii_letters[:40] + 'error' + string.digits + 'fail' + 7 * string.digits
    monkeypatch.setattr(docstrings, 'paragraphs', lambda: ([text], [text]))
    records, _ = failures.texts()
    assert records == [{'prompt': text[:32]}, {'prompt': text[8:40]}]
    labels = {record['prompt']: record['label'] for record in failure_labels.texts()[0]}
    spoils = {i for word in ('error', 'fail') for i in range(len(text))
              if word in text[i:i + 64]}
    assert labels == {text[i:i + 64]: int(i not in spoils) for i in range(len(text) - 63)}
    assert failures.fails('an err', 'or') and not failures.fails('an error', 's')


# ---- the KL --------------------------------------------------------------------------------------


def test_the_kl_as_a_reward_is_the_log_ratio_of_the_probabilities_of_a_completion(knobs):
    """They come from an enumeration of all completions."""
    knobs('config/grpo_labels.py', max_new_tokens=3)
    networks = SimpleNamespace(policy=tiny(True), reference=tiny(True, seed=3))
    found = [outcomes(network, prompts_of('ab___')) for network in vars(networks).values()]
    for (r, p), (_, q) in zip(*found, strict=True):
        close(grpo.kl(r, networks), [math.log(p / q)])


def test_the_weight_of_the_kl_follows_the_kl_and_a_resumed_run_goes_on_with_it(toy, tmp_path, file):
    words = [*toy, 'config/papers/adaptive_kl.py', file('target.py', 'TARGET_KL = 1e-4')]
    train(words, tmp_path / 'whole')
    words.append(file('signal.py', SIGNAL.format(number=int(signal.SIGINT))))
    for resume in (False, True):
        train(words + [f'--resume={resume}'], tmp_path / 'parts')
    assert_same(tmp_path / 'whole', tmp_path / 'parts')
    beta, signs = 0.05, set()
    for line in log_of(tmp_path / 'whole'):
        if 'kl_beta' in line:
            assert line['kl_beta'] == pytest.approx(beta, rel=1e-9)
            error = line['kl'] / 1e-4 - 1
            signs.add(error > 0)
            beta *= 1 + max(-0.2, min(0.2, error)) * 32 / 10_000
    assert len(signs) == 2                      # below the target, then above it


def test_the_kl_of_the_loss_has_this_weight(knobs):
    knobs('config/papers/adaptive_kl.py')
    stats = SimpleNamespace(kl=torch.tensor([1.0, 3.0]))
    grpo.state['kl_factor'] = 2.0
    close(grpo.kl_penalty(stats, None), [2, 6])
