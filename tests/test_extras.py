"""What stands beside the scripts: tiny.py learns, the numbers of explain.py add up, the benchmark
and the pictures run."""
import os
import re
import runpy
import sys

import pytest
import torch

from processes import TOY, fails, run


@pytest.fixture(scope='module')
def folder(repository, tmp_path_factory):
    """Return the folder of a toy run."""
    folder = str(tmp_path_factory.mktemp('run') / 'run')
    code, text = run(repository, 'train_grpo.py', *TOY, f'--out_dir={folder}')
    assert code == 0, text
    return folder


def test_tiny_is_sixty_lines_of_code_and_learns_more_than_greedy_decoding_gives(repository):
    with open(f'{repository}/extras/tiny.py') as file:
        source = file.read()
    lines = source.split('"""', 2)[2].splitlines()
    assert sum(bool(line.strip()) and not line.strip().startswith('#') for line in lines) <= 60
    assert set(re.findall(r'^(?:import|from) (\w+)', source, re.M)) == {'copy', 'torch'}
    code, text = run(repository, 'extras/tiny.py')
    assert code == 0, text
    shares = re.findall(r'line to beat ([\d.]+) \| true ([\d.]+)', text)
    line_to_beat, start = map(float, shares[0])
    end = float(shares[-1][1])
    assert len(shares) > 5 and start < 0.4 and end > 0.5 + max(start, line_to_beat), text


@pytest.mark.parametrize('flags', [
    ['--loss_norm=token', '--adv_norm=none'],
    ['--loss_norm=sequence', '--entropy_coef=0.1', '--adv_norm=std'],
    ['--loss_norm=constant', '--objective=cispo', '--entropy_coef=0.1', '--n_fill_steps=2'],
    ['--rewards={"judge": 1.0, "kl": -0.1}', '--kl_beta=0', '--entropy_coef=0.2']])
def test_the_terms_of_one_group_add_up(flags, repository):
    code, text = run(repository, 'extras/explain.py', *TOY, *flags)
    assert code == 0, text
    terms = {name: float(number) for name, number in
             re.findall(r'^(pg_loss|kl_penalty|entropy_bonus|loss) +(-?[\d.]+)', text, re.M)}
    loss = terms.pop('loss')
    assert len(terms) == 3 and loss == pytest.approx(sum(terms.values()), abs=2e-5)
    lines = re.findall(r'^ +\d+ x((?: +-?[\d.]+){5})', text, re.M)
    columns = torch.tensor([[float(number) for number in line.split()] for line in lines])
    reward, advantage, before, after, change = columns.T
    torch.testing.assert_close(after - before, change, atol=2e-3, rtol=0)
    if '--adv_norm=none' in flags and len(lines) == 4:
        torch.testing.assert_close(reward - reward.mean(), advantage, atol=2e-3, rtol=0)


def test_the_benchmark_compares_with_the_usual_way_and_writes_no_run(repository):
    files = set(os.listdir(repository))
    code, text = run(repository, 'extras/benchmark.py', *TOY)
    assert code == 0, text
    assert re.search(r'a step +[\d.]+ ms, 1.00', text) and 'the usual way' in text
    assert {name for name in set(os.listdir(repository)) - files if 'output' not in name} == set()


def test_pictures_are_drawn(repository, folder, monkeypatch):
    pytest.importorskip('matplotlib')
    other = folder.replace('run/run', 'run/classifier')
    os.path.exists(other) or os.symlink(folder, other)
    for words, path in (
            (['curves.py', folder], f'{folder}/curves.png'),
            (['curves.py', folder, other], f'{folder}/compare.png'),
            (['figures.py', 'passes', folder, other], f'{repository}/assets/passes.png'),
            (['figures.py', 'hacking', folder, other], f'{repository}/assets/hacking.png')):
        if os.path.exists(path):
            os.remove(path)
        code, text = run(repository, f'extras/{words[0]}', *words[1:])
        assert code == 0, text
        with open(path, 'rb') as file:
            assert file.read(8) == b'\x89PNG\r\n\x1a\n'
    fails(['no/run'], repository, 'extras/curves.py', 'no/run')


def test_a_log_of_a_resumed_or_killed_run_is_read_once_per_step(tmp_path):
    pytest.importorskip('matplotlib')
    from extras.curves import read_log
    (tmp_path / 'log.jsonl').write_text(
        '{"step": 0, "eval/a": 1}\n{"step": 0, "loss": 1}\n{"step": 1, "loss": 2}\n'
        '{"step": 1, "loss": 3}\n{"step": 2, "lo')
    assert read_log(tmp_path) == [{'step': 0, 'eval/a': 1}, {'step': 0, 'loss': 1},
                                  {'step': 1, 'loss': 3}]


def test_smollm2_says_what_to_install_and_never_writes_over_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['smollm2.py', str(tmp_path)])
    with pytest.raises(SystemExit, match=str(tmp_path)):
        runpy.run_module('extras.smollm2', run_name='__main__')
    monkeypatch.setattr(sys, 'argv', ['smollm2.py', str(tmp_path / 'new')])
    monkeypatch.setitem(sys.modules, 'gguf', None)      # importing it fails
    with pytest.raises(SystemExit, match='pip install transformers'):
        runpy.run_module('extras.smollm2', run_name='__main__')
