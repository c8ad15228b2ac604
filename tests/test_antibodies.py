"""The example of examples/antibodies/, with a toy BERT in the place of AntiBERTy."""
import json
import runpy

import pytest
import torch

pytest.importorskip('transformers')
import hf
from dataset import Dataset, read_texts
from examples.antibodies.measure import pseudo_likelihood
from processes import ROOT, succeeds, write
from pretrain import complete
from run.folder import load_checkpoint
from test_hf import folder_of


@pytest.fixture(autouse=True)
def loops():
    lines = []
    for v in 'ADEFG':
        for blanks in ('___', '_____'):
            record = {'prompt': f'Q{v}CAR{blanks}WGQ', 'held_out': v in 'DE'}
            lines.append(json.dumps(record))
    write('loops.jsonl', '\n'.join(lines))


@pytest.mark.parametrize('loop, is_free, net_is_right', [
    ('GYFDY', 1, 1), ('GEEDY', 1, 0), ('DGFDY', 0, 1), ('NPSDR', 0, 0)])
def test_rewards_of_antibodies_look_at_the_loop_alone(loop, is_free, net_is_right):
    """The genes around it have motifs, too."""
    first = runpy.run_path(ROOT / 'examples/antibodies/free.py')
    second = runpy.run_path(ROOT / 'examples/antibodies/charge.py')
    prompts = ['MCNGSCA' + len(loop) * '_' + 'WDG']
    completions = [f'MCNGSCA{loop}WDG']
    assert first['free'](prompts, completions) == [is_free]
    assert second['charge'](prompts, completions) == [net_is_right]


def test_pseudo_likelihood_masks_one_blank_at_a_time():
    model = hf.Pretrained(folder_of('bert'))
    data = Dataset(*read_texts('loops.jsonl')[:2], model.tok, False, blank_kind='marked')
    prompts = data.prompts('train', 3, 4, 1)
    sequences = complete(model, prompts).sequences[::4]
    expected = []
    for ids, blank in zip(sequences, prompts.blank):
        logp = []
        for t in blank.nonzero()[:, 0]:
            state = ids.clone()
            state[t] = model.blank_id
            logits = model.logits(model(state[None]))[0, t]                     # (V,)
            logp.append(logits.log_softmax(-1)[ids[t]])
        expected.append(torch.stack(logp).mean())
    found = pseudo_likelihood(model, sequences, prompts.blank)
    torch.testing.assert_close(found, torch.stack(expected))


def test_two_rewards_of_antibodies_compose_and_the_loops_are_measured():
    text = succeeds(
        'train_grpo.py', 'examples/antibodies/free.py', 'examples/antibodies/charge.py',
        f'--generator={folder_of("bert")}', '--dataset=loops.jsonl', '--max_iters=2',
        '--batch_size=2', '--group_size=4', '--device=cpu', '--out_dir=loops')
    assert 'free' in text and 'charge' in text
    assert 'nats a letter' in succeeds(
        'examples/antibodies/measure.py', 'loops', *load_checkpoint('loops')['words'])
