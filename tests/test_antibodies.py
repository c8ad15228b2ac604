"""The example of examples/antibodies/, with a toy BERT in the place of AntiBERTy."""
import json
import runpy

import pytest
import torch

pytest.importorskip('transformers')
import hf
from dataset import Dataset, read_texts
from examples.antibodies.antiberty import make_prompts
from examples.antibodies.measure import pseudo_likelihood
from processes import ROOT, succeeds, write
from rollout import complete
from test_hf import folder_of


@pytest.fixture(autouse=True)
def loops():
    lines = [json.dumps({'prompt': f'Q{v}CAR{n * "_"}WGQ', 'held_out': v in 'DE'})
             for v in 'ADEFG' for n in (3, 5)]
    write('loops.jsonl', '\n'.join(lines))


def test_prompts_of_antibodies_hold_out_whole_genes_and_show_the_j_gene_from_its_w_on():
    v_genes = {'IGHV1-2*01': 'QV-CAR--', 'IGHV1-2*02': 'QICAR', 'IGHV4-4*01': 'QLCAK'}
    j_genes = {'IGHJ1*01': '--FQHWG', 'IGHJ4*01': 'FDYWG', 'IGHJ2*01': 'FDLWR'}
    prompts = make_prompts(v_genes, j_genes)
    assert {(prompt.replace('_', ' ').split()[0], prompt.split('_')[-1], held_out)
            for prompt, held_out in prompts.items()} == {
                ('QVCAR', 'WG', False), ('QLCAK', 'WR', True)}
    assert sorted(prompt.count('_') for prompt in prompts) == sorted(2 * [*range(6, 13)])


@pytest.mark.parametrize('loop, is_free, net_is_right', [
    ('GYFDY', 1, 1), ('GEFDY', 1, 1), ('GEEDY', 1, 0), ('RYFDY', 1, 0), ('DGFDY', 0, 1),
    ('GYMDV', 0, 1), ('NYSDY', 0, 1), ('NPSDR', 0, 0), ('G\nFDY', 0, 1)])
def test_rewards_of_antibodies_look_at_the_loop_alone(loop, is_free, net_is_right):
    """The genes around it have motifs, too."""
    first, second = [runpy.run_path(ROOT / f'examples/antibodies/{name}.py')
                     for name in ('free', 'charge')]
    prompt, completion = [f'MCNGSCA{middle}WDG' for middle in (len(loop) * '_', loop)]
    assert first['free']([prompt], [completion]) == [is_free]
    assert second['charge']([prompt], [completion]) == [net_is_right]


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
            logp.append(model.logits(model(state[None]))[0, t].log_softmax(-1)[ids[t]])
        expected.append(torch.stack(logp).mean())
    found = pseudo_likelihood(model, sequences, prompts.blank)
    torch.testing.assert_close(found, torch.stack(expected))


def test_two_rewards_of_antibodies_compose_and_the_loops_are_measured():
    text = succeeds(
        'train_grpo.py', 'examples/antibodies/free.py', 'examples/antibodies/charge.py',
        f'--generator={folder_of("bert")}', '--dataset=loops.jsonl', '--max_iters=2',
        '--batch_size=2', '--group_size=4', '--device=cpu', '--out_dir=loops')
    assert 'free' in text and 'charge' in text
    assert 'nats a letter' in succeeds('examples/antibodies/measure.py', 'loops')
