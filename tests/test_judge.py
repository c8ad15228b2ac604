"""Judges and classifiers."""
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from judge import judge_scores
from plumbing.datasets import load
from plumbing.networks import load_network
from runs import CPU, finish
from tasks import Task
from test_grpo import close, knobs, slow_logits, tiny  # noqa: F401, a fixture

LABELS = """
def texts():
    records = [{'prompt': f'{i:03}', 'label': i // 500} for i in range(1000)]
    return records, records[:2]
"""


# ---- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['causal', 'classifier'])
def test_a_judge_gives_the_mean_log_probability_or_the_probability_of_label_1(kind):
    """Of the single text, without padding. Equal texts have equal scores to the last bit."""
    judge = tiny(kind).requires_grad_(False)
    exact = judge.logits
    judge.logits = lambda x: exact(x) + 1e-9 * torch.rand(*x.shape[:-1], 4)     # as rounding does
    rows = [torch.randint(4, (n,)) for n in (5, 2, 8, 4)]
    texts = pad_sequence(9 * rows, batch_first=True, padding_value=judge.pad_id)
    scores = judge_scores(judge, texts)                                         # (36,)
    for ids, score in zip(rows, scores):
        logits = torch.stack([slow_logits(judge, ids, t) for t in range(len(ids))])
        label = logits[:, 0].mean().sigmoid()
        close(score, -F.cross_entropy(logits, ids) if judge.causal else label, atol=1e-8)
    assert scores.equal(scores[:4].repeat(9))


# ---- what a classifier learns --------------------------------------------------------------------


def test_a_classifier_learns_the_labels_of_records(file, tmp_path):
    dataset = file('labels.py', LABELS)
    finish('pretrain.py', 'config/networks/judge_smoke.py', 'config/networks/classifier.py', *CPU,
           f'--dataset={dataset}', f'--out={tmp_path}/judge.pt')
    judge, _ = load_network(tmp_path / 'judge.pt', 'cpu')
    texts = Task(load(dataset), judge.tok, 'random').prompts_of(torch.arange(1000)).whole
    is_right = (judge_scores(judge, texts) > 0.5) == (torch.arange(1000) >= 500)
    assert is_right.float().mean() > 0.9
