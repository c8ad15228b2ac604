"""Networks of transformers: small ones, made here, and checked by transformers itself."""
import json
import shutil
import sys

import pytest
import torch

transformers = pytest.importorskip('transformers')
import safetensors.torch
import tokenizers

from configurator import configure
from conftest import ROOT, TOY, assert_same, checkpoint_of, log_of, run, train

HF, CAUSAL, PASSES = [f'plugins/{name}.py' for name in ('hf', 'causal', 'passes')]
CHAT = ("{{ bos_token }}{% for m in messages %}<u>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}")
MODELS = {'llama': 'LlamaForCausalLM', 'gpt2': 'GPT2LMHeadModel', 'bert': 'BertForMaskedLM'}
NAMES = {'llama': {'eos_token': '</s>', 'bos_token': '<s>'},
         'gpt2': {'eos_token': '</s>', 'unk_token': '<u>'},         # without bos
         'bert': {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'mask_token': '[MASK]'}}
SPECIAL = ['<s>', '</s>', '[CLS]', '[SEP]', '[MASK]', '<u>', '<a>']
PIECES = SPECIAL + list('0123456789+=<>/_sauACDEFGHIKLMNPQRSTVWY')
TASK = """
def texts():
    pairs = [(f'{a}_+{b}=', str(a + b)) for a in range(9) for b in range(5, 14)]
    blanks = [(f'{a}{b}+_=1_', f'{a}{b}+3=1{a}') for a in range(9) for b in range(5, 14)]
    texts = blanks if BLANKS else pairs
    return texts[9:], texts[:9]

def verify(completion):
    return completion.count('7') / (len(completion) + 1)
"""
STOP = """
import os, signal
def collect(networks, task, step, inner=collect):
    if step == 2:
        os.kill(os.getpid(), signal.SIGINT)
    return inner(networks, task, step)
"""


def save_tokenizer(folder, ids, merges=(), normalizer=None, **names):
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(ids, list(merges)))
    tok.decoder = tokenizers.decoders.Fuse()
    if normalizer:
        tok.normalizer = normalizer
    tok.add_special_tokens([piece for piece in ids if piece in SPECIAL])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tok, **names).save_pretrained(folder)


def save_network(folder, kind, **more):
    """Write a network of random weights: a Llama with grouped heads and tied weights, say. It has
    two more ids than its tokenizer."""
    torch.manual_seed(0)
    network = getattr(transformers, kind)
    sizes = {'vocab_size': 48, 'hidden_size': 32, 'intermediate_size': 64, 'num_hidden_layers': 3,
             'num_attention_heads': 4, 'num_key_value_heads': 2, 'max_position_embeddings': 64,
             'pad_token_id': 1, 'tie_word_embeddings': True, 'initializer_range': 0.4}
    network(network.config_class(**sizes | more)).save_pretrained(folder)


@pytest.fixture(scope='session')
def folders(tmp_path_factory):
    """Return a folder with those of the MODELS and two tasks."""
    root = tmp_path_factory.mktemp('folders')
    for kind, names in NAMES.items():
        ids = {piece: i for i, piece in enumerate(PIECES)}
        save_tokenizer(root / kind, ids, chat_template=CHAT, **names)
        save_network(root / kind, MODELS[kind])
        (root / f'{kind}.py').write_text(f"BLANKS = {kind == 'bert'}\n{TASK}")
    return root


def words_of(folders, kind):
    """Return the words of a run with a network of the folder."""
    plugins = [HF] if kind == 'bert' else [CAUSAL, HF, '--max_new_tokens=4']
    return [TOY[0], *plugins, *TOY[2:], '--rewards={"verify": 1.0}', '--blank_kind=answer',
            '--kl_beta=0', '--entropy_coef=0', f'--dataset={folders}/{kind}.py',
            f'--generator={folders}/{kind}']


@pytest.fixture
def opened(grpo, folders):
    """opened('llama') returns its network, a Task, and the network as transformers opens it. All
    have float64. (A Llama norms in float32 even so.)"""
    def open_both(kind, *more):
        words = [*words_of(folders, kind)[1:], '--dtype=float64', *more]
        _, networks, task = grpo.set_up(words)
        theirs = getattr(transformers, MODELS[kind]).from_pretrained(
            folders / kind, attn_implementation='eager', dtype=torch.float64)
        return networks.policy, task, theirs
    return open_both


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def begin_of(kind):
    """Return the ids before a text, which our rows of ids do not have."""
    return {'llama': [0], 'gpt2': [], 'bert': [2]}[kind]


def slow_logits(kind, theirs, pad, row):
    """Return what transformers says of the places of a row of our ids (T,), without padding."""
    ids = [4 if i == pad - 2 else i for i in row.tolist() if i != pad]      # [MASK] is a blank
    logits = theirs(torch.tensor([begin_of(kind) + ids])).logits[0, :, :46]
    if kind == 'gpt2':                                  # nothing predicts the first token
        logits = torch.cat((torch.zeros(1, 46), logits))
    return logits[1:] if kind == 'bert' else logits[:-1]


# ---- text ----------------------------------------------------------------------------------------


def test_a_text_that_goes_on_gets_no_space_and_keeps_its_first_line_feed(grpo, tmp_path):
    """Llama 2 puts a space in front of each text. Elsewhere two line feeds are one token. There an
    eos behind a hole could not be sampled if ids were only counted."""
    configure(vars(grpo), [HF])
    ids = {'<s>': 0, '\n\n': 1, ' ': 2, '\n': 3, '3': 4, '6': 5, '</s>': 9}
    save_tokenizer(tmp_path / 'a', ids, eos_token='</s>',
                   normalizer=tokenizers.normalizers.Prepend(' '))
    save_tokenizer(tmp_path / 'b', ids, [('\n', '\n')], eos_token='</s>', bos_token='<s>')
    space, feeds = [grpo.PretrainedTokenizer(tmp_path / name, True) for name in 'ab']
    assert space.encode_prompt('36') == [2, 4, 5] and space.encode('36') == [4, 5]
    assert feeds.encode('\n36') == [3, 4, 5] and feeds.encode('\n\n3') == [1, 4]
    assert feeds.eos == 9 and feeds.vocab_size == 10
    assert feeds.decode([feeds.bos, 4, feeds.blank, 0, 5, 7, 9, feeds.pad]) == '3_6'


@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_a_prompt_has_one_bos_and_one_chat_template_also_if_it_brings_them(grpo, folders, kind):
    tok = transformers.AutoTokenizer.from_pretrained(folders / kind)
    chat = [{'role': 'user', 'content': '1+2='}]
    text = tok.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    expected = tok.encode(text, add_special_tokens=False)
    for prompt, knob in (('1+2=', True), (text, True), (text, False)):
        configure(vars(grpo), [HF, f'--chat_template={knob}'])
        ours = grpo.PretrainedTokenizer(folders / kind, True)
        assert begin_of(kind) + ours.encode_prompt(prompt) == expected


# ---- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize('kind, more', [('llama', []), ('gpt2', []), ('bert', []),
                                        ('bert', [PASSES, '--n_fill_steps=2'])])
def test_log_probabilities_entropy_and_gradient_are_those_of_transformers(kind, more, opened, grpo):
    """Though prompts are computed once for their completions, and tokens a few at a time."""
    ours, task, theirs = opened(kind, *more, '--temperature=0.7', '--top_p=0.9')
    grpo.NUMBERS_AT_ONCE = 3 * ours.pad_id
    r = grpo.complete(ours, task.prompts('train', 3), 4)
    stats = grpo.token_stats(ours, r)
    views = [slow_logits(kind, theirs, ours.pad_id, view) for view in r.views]
    rows = []
    for t, view, id, kept in zip(r.t, r.view, r.id, r.kept):
        z = views[view][t] / 0.7
        logp = z.log_softmax(0)
        rows.append(torch.stack((z[id] - z[kept].logsumexp(0), -logp.exp() @ logp)))
    actual, expected = torch.stack((stats.logp, stats.entropy), 1), torch.stack(rows)
    close(actual, expected)
    weights = torch.randn(actual.shape)
    for values in (actual, expected):
        (weights * values).sum().backward()
    for name, p in theirs.named_parameters():
        if p.grad is not None:
            close(ours.network.get_parameter(name).grad, p.grad, 1e-4)


@pytest.mark.parametrize('kind, chat', [('llama', True), ('llama', False), ('gpt2', True)])
def test_greedy_completions_are_those_of_generate_and_an_underscore_is_a_character(
        kind, chat, opened, grpo):
    ours, task, theirs = opened(kind, f'--chat_template={chat}', '--max_new_tokens=9')
    tok = task.tok.theirs
    r = grpo.complete(ours, task.prompts('train', 5), 1, greedy=True)
    for text, row in zip(grpo.columns_of(r)['prompt'], r.sequences):
        assert '_' in text
        inputs = begin_of(kind) + tok.encode(text, add_special_tokens=False)
        if chat:
            inputs = tok.apply_chat_template([{'role': 'user', 'content': text}],
                                             add_generation_prompt=True, return_dict=False)
        expected = theirs.generate(torch.tensor([inputs]), max_new_tokens=9, do_sample=False,
                                   use_cache=False, eos_token_id=task.tok.eos, pad_token_id=2,
                                   suppress_tokens=[46, 47])
        ids = row[row != ours.pad_id].tolist()
        assert begin_of(kind) + ids == expected[0].tolist()


@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_a_judge_gives_the_mean_log_probability_of_transformers(kind, opened, grpo):
    ours, task, theirs = opened(kind)
    grpo.NUMBERS_AT_ONCE = 30 * ours.pad_id             # some texts at a time
    texts = grpo.complete(ours, task.prompts('train', 3), 2).sequences
    expected = []
    for row in texts:
        logits = slow_logits(kind, theirs, ours.pad_id, row)
        ids = row[row != ours.pad_id]
        expected.append(-torch.nn.functional.cross_entropy(logits, ids))
    close(grpo.judge_scores(ours, texts), torch.stack(expected))


@pytest.mark.parametrize('kind', MODELS)
def test_nothing_to_learn_from_is_a_gradient_of_zero(kind, opened, grpo):
    """Ranks add up the gradients of the same weights, also where no group teaches anything."""
    ours, task, _ = opened(kind)
    r = grpo.complete(ours, task.prompts('train', 2), 2).only(torch.zeros(4).bool())
    grpo.token_stats(ours, r).logp.sum().backward()
    assert all(p.grad.abs().sum() == 0 for p in ours.parameters())


# ---- refusals ------------------------------------------------------------------------------------


def lose_weight(folder):
    weights = safetensors.torch.load_file(folder / 'model.safetensors')
    del weights['model.layers.1.mlp.up_proj.weight']
    safetensors.torch.save_file(weights, folder / 'model.safetensors', {'format': 'pt'})


def bring_code(folder):
    config = json.loads((folder / 'config.json').read_text())
    config['auto_map'] = {'AutoConfig': 'mine.Config', 'AutoModelForCausalLM': 'mine.Model'}
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'mine.py').write_text(f"open({str(folder / 'ran')!r}, 'w')")


@pytest.mark.parametrize('kind, change', [
    ('llama', {'kind': 'Gemma2ForCausalLM', 'final_logit_softcapping': 200.0, 'head_dim': 8}),
    ('llama', {'kind': 'BertLMHeadModel'}),             # it is not causal
    ('bert', {'kind': 'FNetForMaskedLM'}),              # it mixes padding with text
    ('llama', {'kind': 'MambaForCausalLM'}),            # it has no keys and values
    ('llama', {'kind': 'BertForMaskedLM'}),             # this tokenizer has no mask token
    ('llama', {'kind': 'LlamaForCausalLM', 'vocab_size': 45}),      # and 46 ids
    ('llama', lose_weight), ('llama', bring_code)])
def test_a_folder_gives_the_logits_of_transformers_or_is_refused(
        kind, change, folders, grpo, tmp_path):
    """Also where a run has bfloat16, and however little a cap changes; and its code never runs."""
    configure(vars(grpo), [HF])
    folder = tmp_path / 'folder'
    shutil.copytree(folders / kind, folder)
    with torch.autocast('cpu', torch.bfloat16):
        grpo.load_network(folder, 'cpu')
        if callable(change):
            change(folder)
        else:
            save_network(folder, **change)
        with pytest.raises(AssertionError):
            grpo.load_network(folder, 'cpu')
    assert not (folder / 'ran').exists()


@pytest.mark.parametrize('word', ['--max_new_tokens=58', '--optimizer=muon', '--compile=True'])
def test_a_run_that_cannot_be_is_refused_before_it_begins(word, opened):
    """A text of 6 + 58 tokens, with its bos, is too long by one."""
    opened('llama', '--max_new_tokens=57')
    with pytest.raises((AssertionError, SystemExit)):
        opened('llama', word)


def test_transformers_is_needed_by_the_plugin_alone(grpo, monkeypatch):
    monkeypatch.setitem(sys.modules, 'transformers', None)          # import fails
    with pytest.raises(SystemExit):
        configure(vars(grpo), [HF])
    assert not any('transformers' in path.read_text() for path in ROOT.glob('*.py'))


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind, more', [
    ('llama', ['--chat_template=True', '--learning_rate=2e-2', '--max_iters=12', '--group_size=16',
               '--warmup_iters=0']),
    ('bert', [PASSES, '--fill_order=learned', '--n_fill_steps=2', '--learning_rate=1e-3'])])
def test_a_run_is_resumed_exactly_and_learns_and_its_policy_leaves_as_it_came(
        kind, more, grpo, folders, file, tmp_path):
    words = words_of(folders, kind) + more
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    train(words, whole)
    train([*words, file('stop.py', STOP)], parts)
    assert checkpoint_of(parts)['step'] == 3
    train(words, parts, '--resume=True')
    assert_same(whole, parts)
    verify = [line['eval/verify'] for line in log_of(whole) if 'eval/verify' in line]
    assert verify[0] < 0.05 and (kind == 'bert' or verify[-1] > 0.15), verify

    code, text, error = run('sample.py', str(whole), '--num_samples=1')
    assert code == 0 and f'after   | verify {verify[-1]:.3f}' in text, error
    code, _, error = run('extras/export.py', str(whole), str(tmp_path / 'exported'))
    assert code == 0, error
    configure(vars(grpo), [HF])
    paths = [whole / 'ckpt.pt', tmp_path / 'exported', folders / kind]
    networks = [grpo.load_network(str(path), 'cpu')[0] for path in paths]
    policy, again, start = [network.logits(network(torch.arange(8, 20)[None]))
                            for network in networks]
    assert again.equal(policy) and not again.equal(start)
