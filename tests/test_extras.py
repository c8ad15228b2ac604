"""What stands beside the scripts: sixty lines learn, one group by hand adds up, the benchmark and
the curves run, and what is exported is the same model."""
import os
import re

import pytest
import torch

from model import load_gpt
from processes import CAUSAL, TOY, fails, run


@pytest.fixture(scope='module')
def out(repository, tmp_path_factory):
    """The folder of a toy run."""
    folder = str(tmp_path_factory.mktemp('run') / 'run')
    code, text = run(repository, 'train_grpo.py', *TOY, f'--out_dir={folder}')
    assert code == 0, text
    return folder


def test_sixty_lines_learn_more_than_to_be_sure(repository):
    with open(f'{repository}/extras/tiny.py') as file:
        used = re.findall(r'^(?:import|from) (\w+)', file.read(), re.M)
    assert set(used) == {'copy', 'torch'}
    code, text = run(repository, 'extras/tiny.py')
    assert code == 0, text
    shares = re.findall(r'line to beat ([\d.]+)% \| true ([\d.]+)%', text)
    line_to_beat = float(shares[0][0])
    start = float(shares[0][1])
    end = float(shares[-1][1])
    assert len(shares) > 5 and start < 40 and end > 50 + max(start, line_to_beat), text


@pytest.mark.parametrize('flags', [
    ['--loss_norm=token'], ['--loss_norm=sequence', '--entropy_coef=0.1', '--adv_norm=std'],
    ['--loss_norm=constant', '--objective=cispo', '--entropy_coef=0.1', '--n_fill_steps=2'],
    ['--rewards={"judge": 1.0, "kl": -0.1}', '--kl_beta=0', '--entropy_coef=0.2']])
def test_the_terms_of_one_group_by_hand_add_up(flags, repository):
    code, text = run(repository, 'extras/explain.py', *TOY, *flags)
    assert code == 0, text
    terms = {name: float(number) for name, number in
             re.findall(r'^(pg_loss|kl_penalty|entropy_bonus|loss) +(-?[\d.]+)', text, re.M)}
    loss = terms.pop('loss')
    assert len(terms) == 3 and loss == pytest.approx(sum(terms.values()), abs=2e-5)
    rows = re.findall(r'^ +\d+ x((?: +-?[\d.]+){5})', text, re.M)
    columns = torch.tensor([[float(number) for number in row.split()] for row in rows])
    reward, advantage, before, after, change = columns.T
    torch.testing.assert_close(after - before, change, atol=2e-3, rtol=0)
    if '--adv_norm=std' not in flags and len(rows) == 4:
        torch.testing.assert_close(reward - reward.mean(), advantage, atol=2e-3, rtol=0)


def test_the_benchmark_says_where_the_time_goes_and_writes_no_run(repository):
    before = set(os.listdir(repository))
    code, text = run(repository, 'extras/benchmark.py', *TOY)
    assert code == 0, text
    shares = [float(share) for share in re.findall(r'([\d.]+)%$', text, re.M)]
    assert 'judge' in text and 60 < sum(shares) < 140, text
    assert 'GFLOP/s' in text and 'usual' in text and 'GB' in text
    made = {name for name in set(os.listdir(repository)) - before if 'output' not in name}
    assert made == set()


def test_curves_of_a_run_and_of_two_are_drawn(repository, out):
    pytest.importorskip('matplotlib')
    for folders, name in (([out], 'curves.png'), ([out, out], 'compare.png')):
        code, text = run(repository, 'extras/curves.py', *folders)
        assert code == 0, text
        with open(f'{out}/{name}', 'rb') as file:
            assert file.read(8) == b'\x89PNG\r\n\x1a\n'
    fails(['no/run'], repository, 'extras/curves.py', 'no/run')


@pytest.mark.parametrize('causal', [False, True])
def test_what_is_exported_has_the_same_logits(causal, here, tmp_path):
    transformers = pytest.importorskip('transformers')
    recipe = CAUSAL if causal else TOY[0].partition('=')[2]
    code, text = run(here, 'model.py', *recipe.split(), '--positions=rotary',
                     f'--out={tmp_path}/gpt.pt')
    assert code == 0, text
    code, text = run(here, 'extras/export.py', f'{tmp_path}/gpt.pt', f'{tmp_path}/new')
    assert code == 0, text
    fails(['new'], here, 'extras/export.py', f'{tmp_path}/gpt.pt', f'{tmp_path}/new')

    gpt = load_gpt(f'{tmp_path}/gpt.pt')
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'new').eval()
    tokens = torch.randint(gpt.vocab_size, (3, 10))
    with torch.no_grad():
        if causal:          # their logits at t are of what follows; ours at t of what stands there
            inputs = torch.nn.functional.pad(tokens, (1, 0), value=gpt.bos_id)[:, :-1]
            found = theirs(inputs).logits
            expected = gpt(tokens)
        else:
            where = torch.rand(3, 10) < 0.5
            sees_all = torch.zeros(3, 1, 10, 10)
            found = theirs(tokens.masked_fill(where, gpt.mask_id), attention_mask=sees_all).logits
            found = found[where]
            expected = gpt(tokens, where)
    torch.testing.assert_close(found[..., :gpt.vocab_size], expected, atol=1e-4, rtol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'new')
    assert tokenizer('12+35=').input_ids[-6:] == gpt.tok.encode('12+35=')


def test_the_numbers_of_a_run_are_those_that_sample_shows(repository, out):
    code, text = run(repository, 'sample.py', f'--out_dir={out}', '--num_samples=2')
    assert code == 0 and 'reference' in text and 'the line to beat' in text, text
    code, text = run(repository, 'sample.py', f'--out_dir={out}', '--prompt=1_+3_=__7', '--k=3')
    assert code == 0 and text.count('=') >= 6, text
    fails(['no-such-run'], repository, 'sample.py', '--out_dir=no-such-run')
    fails(["'x'"], repository, 'sample.py', f'--out_dir={out}', '--prompt=x_')


def test_looking_at_a_run_of_others_runs_no_code_that_it_names(repository, out, tmp_path):
    theirs = tmp_path / 'theirs.py'
    theirs.write_text(f"open({str(tmp_path / 'was-here')!r}, 'w')\n"
                      "def charm(prompts, completions): return [3.0] * len(prompts)\n")
    content = torch.load(f'{out}/ckpt.pt', weights_only=True)
    content['config'] |= {'rewards': {'charm': 1.0}, 'config_files': [str(theirs)],
                          'generator_recipe': str(theirs), 'judge_recipe': str(theirs)}
    torch.save(content, tmp_path / 'ckpt.pt')
    words = [repository, 'sample.py', f'--out_dir={tmp_path}', '--num_samples=1']
    code, text = run(*words)
    assert code == 0 and 'charm' not in text, text
    assert not os.path.exists(tmp_path / 'was-here')
    code, text = run(*words, str(theirs))       # but a file that is named here is run
    assert code == 0 and 'charm 3.000' in text, text
