"""Models of others in the place of a GPT: small ones, made here, judged by transformers itself."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip('transformers')
HOME = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(HOME))
from data.dataset import BLANK, Prompts, draws, prompts_of_texts
from extras import make_tiny, pretrained
from model import complete, load_gpt, log_probs

close = torch.testing.assert_close
T = 16                      # positions in a row
TEXTS = [f'{a}+{b}={a + b}' for a in range(20) for b in range(20)]
# letters: N rows, k of each of B prompts | V vocabulary | U places to choose at


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """{causal: folder} of two models with random weights, large enough to be sure of something."""
    torch.manual_seed(0)
    home = tmp_path_factory.mktemp('models')
    found = {True: str(home / 'causal'), False: str(home / 'masked')}
    for causal, folder in found.items():
        make_tiny.write_model(folder, TEXTS, causal, 280, 32)
        model = pretrained.Pretrained(folder, T, causal)
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(0.2 * torch.randn(weights.shape))
        pretrained.save(model, folder)
    return found


def theirs_of(folder, causal):
    """The model as transformers itself loads it."""
    if causal:
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    return transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()


def padded_rows(tok, texts):
    rows = [tok.encode(text) + [tok.eos] for text in texts]
    return torch.tensor([row + [tok.pad] * (T - len(row)) for row in rows])             # (N, T)


def some_prompts(model, k=4):
    """Prompts of different lengths: sums without their answers, or with every other id blank."""
    tok = model.tok
    tokens = padded_rows(tok, ['1+2=3', '12+13=25', '7+15=22'])
    first = torch.tensor([len(tok.encode(text)) for text in ('1+2=', '12+13=', '7+15=')])
    mask = torch.arange(T) >= first[:, None]
    if not model.causal:
        mask = (tokens != tok.pad) & (tokens != tok.eos) & (torch.arange(T) % 2 == 0)
    return Prompts(tokens, mask, torch.rand(3, T, k), tok.eos, order=torch.rand(3, T))


# ---- the tokenizer -------------------------------------------------------------------------------


@pytest.mark.parametrize('causal', [True, False])
def test_text_becomes_ids_and_text_again(folders, causal):
    tok = pretrained.PretrainedTokenizer(folders[causal])
    assert tok.decode([*tok.encode('12+7=19'), tok.eos, tok.pad, tok.bos]) == '12+7=19\n'
    assert tok.tokenizer.convert_ids_to_tokens(tok.eos) == ('<|end|>' if causal else '[SEP]')
    prompts = prompts_of_texts([f'1+{BLANK}_=3'], tok, 'windows', 1, draws(0, 'test'),
                               block_size=12, mode='fill')
    ids = [i for i in prompts.tokens[0].tolist() if i != tok.pad]
    assert ids == [*tok.encode('1+'), tok.mask, tok.mask, *tok.encode('=3')]
    assert tok.decode(ids).count(BLANK) == 2


def test_special_tokens_become_ids_in_a_template_and_stay_letters_in_a_text(folders):
    tok = pretrained.PretrainedTokenizer(folders[True])
    text = tok.apply_template('1+2=')
    assert text == '<|user|>1+2=<|end|><|assistant|>'
    ids = tok.encode(text)
    assert ids == tok.tokenizer.apply_chat_template([{'role': 'user', 'content': '1+2='}],
                                                    add_generation_prompt=True)['input_ids']
    assert ids[-2] == tok.eos
    letters = tok.encode('<|user|>1+2=<|end|>')
    assert tok.eos not in letters
    assert tok.decode(letters) == '<|user|>1+2=<|end|>'


def test_a_tokenizer_is_known_by_what_its_ids_stand_for(folders, tmp_path):
    tok = pretrained.PretrainedTokenizer(folders[True])
    tok.tokenizer.save_pretrained(tmp_path)
    assert pretrained.PretrainedTokenizer(str(tmp_path)).vocabulary['chars'] == (
        tok.vocabulary['chars'])
    assert pretrained.PretrainedTokenizer(*tok.vocabulary.values()).vocabulary == tok.vocabulary


# ---- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize('causal', [True, False])
def test_logits_and_gradient_are_those_of_transformers(folders, causal):
    ours = pretrained.Pretrained(folders[causal], T, causal)
    theirs = theirs_of(folders[causal], causal)
    rows = padded_rows(ours.tok, ['1+2=3', '12+13=25'])
    where = (rows != ours.pad_id) & (torch.arange(T) % 2 == 1)
    expected = []
    for row, places in zip(rows, where):                # alone, without padding
        ids = row[row != ours.pad_id]
        places = places[:len(ids)]
        if causal:
            expected.append(theirs(ids[None]).logits[0, :-1][places[1:]])
        else:                                           # [CLS] text [SEP]
            ids = ids.masked_fill(places, ours.tok.tokenizer.mask_token_id).tolist()
            ids = torch.tensor([[ours.tok.tokenizer.cls_token_id, *ids]])
            expected.append(theirs(ids).logits[0, 1:][places])
    expected = torch.cat(expected)                                                      # (U, V)
    logits = ours(rows, where)
    close(logits, expected, atol=1e-4, rtol=1e-4)
    logits.logsumexp(-1).sum().backward()
    expected.logsumexp(-1).sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(mine.grad, other.grad, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize('causal, n_fill_steps', [(True, 1), (False, 1), (False, 2), (False, 5)])
@pytest.mark.parametrize('how', [{}, {'temperature': 0.7, 'top_p': 0.9}])
def test_what_sampling_said_is_what_learning_says(folders, causal, n_fill_steps, how):
    model = pretrained.Pretrained(folders[causal], T, causal)
    r = complete(model, some_prompts(model), n_fill_steps=n_fill_steps, **how)
    logp = log_probs(r.logits_of(model), how.get('temperature', 1.0), r.kept)           # (U, V)
    close(logp[r.point, r.actions], r.logp_old, atol=1e-4, rtol=1e-4)


def test_the_likeliest_completion_is_what_generate_writes(folders):
    model = pretrained.Pretrained(folders[True], T, True)
    prompts = some_prompts(model)
    rows = complete(model, prompts, greedy=True).rows
    theirs = theirs_of(folders[True], True)
    for row, mask, tokens in zip(rows, prompts.mask, prompts.tokens):
        written = theirs.generate(tokens[~mask][None], do_sample=False, max_length=T)[0]
        assert row[row != model.pad_id].tolist() == written.tolist()


@pytest.mark.parametrize('expected, make', [
    ('no folder', lambda causal, masked: pretrained.PretrainedTokenizer('not-there')),
    ('not the one', lambda causal, masked: pretrained.PretrainedTokenizer(causal, 'another')),
    ('Unrecognized configuration', lambda causal, masked: pretrained.Pretrained(causal, T, False)),
    ('up to 511', lambda causal, masked: pretrained.Pretrained(masked, 512, False)),
    ('no BOS', lambda causal, masked: pretrained.Pretrained(causal, T, True)(
        torch.zeros(1, T), torch.ones(1, T, dtype=torch.bool)))])
def test_what_does_not_fit_ends_with_one_line(folders, expected, make):
    with pytest.raises(SystemExit, match=expected):
        make(folders[True], folders[False])


# ---- a run ---------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def run(folders, tmp_path_factory):
    """A function that calls Python in a copy of the project, in which chats are prepared."""
    home = tmp_path_factory.mktemp('run') / 'copy'
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns('.*', 'out*', '*.bin', 'meta.json'))

    def run(*words):
        environment = os.environ | {'OMP_NUM_THREADS': '1'}
        subprocess.run([sys.executable, *words], cwd=home, env=environment, check=True)
        return home

    pairs = [{'prompt': f'{a}+{b}=', 'answer': str(a + b)} for a in range(9) for b in range(9)]
    (home / 'mine.jsonl').write_text('\n'.join(map(json.dumps, pairs)))
    run('data/pairs/prepare.py', '--input=mine.jsonl', f'--tokenizer={folders[True]}',
        '--template=True')
    return run


def test_a_run_is_resumed_exactly_and_its_policy_leaves_as_it_came(run, folders, tmp_path):
    words = ['train_grpo.py', 'config/grpo_pretrained.py', '--lr_decay_iters=4', '--eval_prompts=4',
             f'--generator_checkpoint={folders[True]}', f'--block_size={T}', '--dtype=float32',
             '--gradient_accumulation_steps=4', '--learning_rate=1e-3']
    run(*words, '--out_dir=out-whole', '--max_iters=4')
    run(*words, '--out_dir=out-parts', '--max_iters=2')
    home = run(*words, '--out_dir=out-parts', '--max_iters=4', '--resume=True')
    policy = load_gpt(str(home / 'out-whole/ckpt.pt'))
    resumed = load_gpt(str(home / 'out-parts/ckpt.pt'))
    start = load_gpt(folders[True], block_size=T, mode='causal')
    for whole, parts, before in zip(policy.parameters(), resumed.parameters(), start.parameters()):
        assert whole.equal(parts)
        assert not whole.equal(before)

    pretrained.save(policy, tmp_path)
    prompts = some_prompts(policy)
    rows = complete(policy, prompts, greedy=True).rows
    again = load_gpt(str(tmp_path), block_size=T, mode='causal')
    assert complete(again, prompts, greedy=True).rows.equal(rows)


def test_a_row_ends_where_it_ends_not_at_the_end_of_a_turn_in_its_prompt(run, folders):
    home = run('-c', 'from data.dataset import *; data = Dataset("pairs");'
               'tokens, answer = data.batch("train", 64, 16, draws(0, "rows"));'
               'torch.save([tokens, answer, data.tok.eos, data.tok.pad], "rows.pt")')
    tokens, answer, eos, pad = torch.load(home / 'rows.pt')
    last = (tokens != pad).sum(1) - 1
    at = torch.arange(64)
    assert (last >= answer).all()
    assert (tokens[at, last] == eos).all()
    assert (tokens[at, answer - 2] == eos).all()
