"""What stands beside the scripts: tiny.py learns, the numbers of explain.py add up, the benchmark
and the pictures run."""
import pathlib
import re

import pytest

from processes import ROOT, TOY, fails, succeeds, write


def test_tiny_is_sixty_lines_of_code_and_learns_more_than_greedy_decoding_gives():
    _, _, code = (ROOT / 'extras/tiny.py').read_text('utf-8').split('"""', 2)
    assert len(re.findall(r'(?m)^\s*[^#\s]', code)) <= 60
    text = succeeds('extras/tiny.py')
    shares = re.findall(r'line to beat ([\d.]+) \| true ([\d.]+)', text)
    assert float(shares[0][1]) < 0.4
    assert float(shares[-1][1]) > 0.5 + max(map(float, shares[0]))


@pytest.mark.parametrize('flags', [
    ['--loss_norm=token', '--adv_norm=none'],
    ['--loss_norm=constant', '--objective=cispo', '--entropy_coef=0.1', '--n_fill_steps=2']])
def test_the_terms_of_one_group_add_up(flags):
    text = succeeds('extras/explain.py', *TOY, *flags)
    terms = re.findall(r'(?m)^(?:pg_loss|kl_penalty|entropy_bonus|loss) +(\S+)', text)
    *terms, loss = map(float, terms)
    assert len(terms) == 3 and loss == pytest.approx(sum(terms), abs=2e-5)


def test_the_benchmark_compares_with_the_usual_way():
    text = succeeds('extras/benchmark.py', *TOY)
    assert re.search(r'a step +[\d.]+ ms, 1.00', text) and 'the usual way' in text


def test_pictures_are_drawn():
    pytest.importorskip('matplotlib')
    succeeds('train_grpo.py', *TOY, '--out_dir=run')
    for words, path in (('curves.py run', 'run/curves.png'),
                        ('curves.py run ./run', 'run/compare.png'),
                        ('figures.py passes run', 'assets/passes.png'),
                        ('figures.py hacking run', 'assets/hacking.png')):
        write(path, '')
        script, *folders = words.split()
        text = succeeds(f'extras/{script}', *folders)
        assert script != 'curves.py' or 'held-out verify' in text
        assert pathlib.Path(path).read_bytes()[:4] == b'\x89PNG'
    fails('no/run', 'extras/curves.py', 'no/run')


def test_a_log_of_a_resumed_or_killed_run_is_read_once_per_step():
    pytest.importorskip('matplotlib')
    from extras.curves import read_log
    write('log.jsonl', '{"step": 0, "eval/a": 1}\n{"step": 0, "loss": 1}\n'
          '{"step": 0, "loss": 3}\n{"s')
    assert read_log('.') == [{'step': 0, 'eval/a': 1}, {'step': 0, 'loss': 3}]


def test_smollm2_never_writes_over_a_folder():
    fails('is there already', 'extras/smollm2.py', '.')
