"""Networks of transformers: small ones, made here, and checked by transformers itself."""
import json
import shutil
import time
from types import SimpleNamespace
from unittest.mock import Mock, patch

import pytest
import torch
from torch.distributions import Categorical

transformers = pytest.importorskip('transformers')
import huggingface_hub as hub
import tokenizers

import sample
from plumbing.networks import file_of
from plumbing.process import Mistake
from plumbing.run import open_task
from runs import TOY, assert_same, checkpoint_of, run, train
from test_grpo import CAUSAL, PASSES, close, fresh

pytestmark = pytest.mark.xdist_group('transformers')    # so only one process imports it
HF = 'plugins/hf.py'
LORA = 'plugins/lora.py'
CHAT = ("{{ bos_token }}{% for m in messages %}<u>{{ strftime_now('%Y') }}{{ m.content }}</s>"
        "{% endfor %}{% if add_generation_prompt %}<a>{{ think }}{% endif %}")
MODELS = {'llama': 'LlamaForCausalLM', 'mistral': 'MistralForCausalLM', 'qwen2': 'Qwen2ForCausalLM',
          'gpt2': 'GPT2LMHeadModel', 'neox': 'GPTNeoXForCausalLM', 'bert': 'BertForMaskedLM'}
# What a tokenizer puts around a text. The one of gpt2 has a bos and does not use it.
AROUND = {'llama': '<s> $A </s>', 'mistral': '<s> $A', 'bert': '[CLS] $A [SEP]'}
NAMES = {'llama': {'eos_token': '</s>', 'bos_token': '<s>'},
         'mistral': {'eos_token': '</s>', 'bos_token': '<s>'},
         'qwen2': {'eos_token': '</s>'},
         'gpt2': {'eos_token': '</s>', 'bos_token': '<s>', 'model_max_length': 50},
         'neox': {'eos_token': '</s>'},
         'bert': {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'mask_token': '[MASK]'}}
SPECIAL = '<s> </s> [CLS] [SEP] [MASK] <u> <a>'.split()
PIECES = SPECIAL + list('0123456789+=<>/_sauACDEFGHIKLMNPQRSTVWY')        # 46
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
    if step == 2 and not resume:
        os.kill(os.getpid(), signal.SIGINT)
    return inner(networks, task, step)
"""


def save_tokenizer(folder, ids, merges=(), normalizer=None, around='$A', **names):
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(ids, list(merges)))
    tok.decoder = tokenizers.decoders.Fuse()
    tok.normalizer = normalizer
    tok.add_special_tokens([piece for piece in ids if piece in SPECIAL])
    tok.post_processor = tokenizers.processors.TemplateProcessing(
        single=around, special_tokens=[(piece, ids[piece]) for piece in SPECIAL if piece in ids])
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
    """Return a folder with the MODELS and two tasks."""
    root = tmp_path_factory.mktemp('folders')
    for kind, names in NAMES.items():
        ids = dict(zip(PIECES, range(46)))
        if kind == 'qwen2':                     # transformers gives each Qwen2 this token
            ids['<|endoftext|>'] = ids.pop('[SEP]')
        save_tokenizer(root / kind, ids, around=AROUND.get(kind, '$A'),
                       chat_template=CHAT, extra_special_tokens=['<u>', '<a>'], **names)
        # Each token of this Mistral sees four tokens, and no more.
        save_network(root / kind, MODELS[kind], sliding_window=4 if kind == 'mistral' else None)
        (root / f'{kind}.py').write_text(f"BLANKS = {kind == 'bert'}\n{TASK}")
    return root


@pytest.fixture
def hf(grpo):
    """Return train_grpo with plugins/hf.py."""
    return fresh(HF)


def words_of(folders, kind):
    """Return the words of a run with a network of the folder."""
    plugins = [HF] if kind == 'bert' else [CAUSAL, HF, '--max_new_tokens=4']
    return [TOY[0], *plugins, *TOY[2:], '--rewards={"verify": 1.0}', '--blank_kind=answer',
            '--kl_beta=0', '--entropy_coef=0', f'--dataset={folders}/{kind}.py',
            f'--generator={folders}/{kind}']


@pytest.fixture
def opened(grpo, folders):
    """opened('llama') returns its networks, a Task, and the network as transformers opens it. All
    have float64. (A Llama norms in float32 even so.)"""
    def open_both(kind, *more):
        fresh(*words_of(folders, kind)[1:], '--dtype=float64', *more)
        device = grpo.devices.init_device('cpu', grpo.dtype)
        networks, task = open_task(vars(grpo), device, {})
        theirs = getattr(transformers, MODELS[kind]).from_pretrained(
            folders / kind, attn_implementation='eager', dtype=torch.float64)
        return networks, task, theirs
    return open_both


def slow_logits(kind, theirs, row):
    """Return what transformers says of the positions of a row of our ids (T,), without padding."""
    ids = [4 if i == 46 else i for i in row[row != 48].tolist()]       # [MASK] is a blank
    # Its attention has a softmax in float32. Here it has the precision of its inputs.
    exactly = patch('torch.nn.functional.softmax', lambda x, dim, dtype=None: x.softmax(dim))
    with exactly:
        if kind == 'bert':
            return theirs(torch.tensor([[2] + ids])).logits[0, 1:, :46]         # behind [CLS]
        logits = theirs(torch.tensor([ids])).logits[0, :-1, :46]
    return torch.cat((torch.zeros(1, 46), logits))      # nothing predicts the first token


# ---- text ----------------------------------------------------------------------------------------
IDS = {'<s>': 0, '\n\n': 1, ' ': 2, '\n': 3, '3': 4, '0': 5, '</s>': 9}
GOES_ON = {                     # a tokenizer, a text, its ids behind another text and as a prompt
    'Llama 2 puts a space in front of each text': (
        {'normalizer': tokenizers.normalizers.Prepend(' ')}, '30', [4, 5], [2, 4, 5]),
    'two line feeds are one token': ({'merges': [('\n', '\n')]}, '\n30', [3, 4, 5], [3, 4, 5])}


@pytest.mark.parametrize('case', GOES_ON)
def test_a_text_that_goes_on_gets_no_space_and_keeps_its_first_line_feed(case, hf, tmp_path):
    """An eos behind a hole could not be sampled if ids were only counted."""
    more, text, ids, prompt_ids = GOES_ON[case]
    save_tokenizer(tmp_path, IDS, eos_token='</s>', **more)
    tok = hf.PretrainedTokenizer(tmp_path, True)
    assert tok.encode(text) == ids and tok.prompt_ids(text) == prompt_ids
    assert tok.vocab_size == 10
    assert tok.decode([tok.bos, 4, tok.blank, 0, 5, 7, 9, tok.pad]) == '3_0'


@pytest.mark.parametrize('has_chat', [False, True])
@pytest.mark.parametrize('kind', ['llama', 'gpt2', 'neox'])
def test_a_prompt_has_the_bos_and_the_chat_template_of_transformers_once(kind, has_chat, opened):
    """Also if it brings it. An underscore is a character, and eos ends a text, not a prompt."""
    _, task, _ = opened(kind, f'--chat_template={has_chat}', '--chat_options={"think": 7}')
    theirs = task.tok.theirs
    first = '<s>' if kind == 'llama' else ''
    for prompt in ('1_+2=', f'{first}1_+2='):
        text = f'{first}1_+2='
        if has_chat:
            text = theirs.apply_chat_template([{'role': 'user', 'content': prompt}],
                                              add_generation_prompt=True, tokenize=False, think=7)
            text = text.replace(time.strftime('%Y'), '2025-01-01')
        ids, _, _ = task.encode({'prompt': prompt, 'answer': '3'})
        assert ids == theirs.encode(f'{text}3</s>', add_special_tokens=False)


# ---- the network ---------------------------------------------------------------------------------
def norm_exactly(network):
    """A Llama norms in float32, whatever its weights are. Let it norm in float64."""
    for layer in network.modules():
        if type(layer).__name__.endswith('RMSNorm'):
            layer.forward = lambda x, layer=layer: torch.nn.functional.rms_norm(
                x, x.shape[-1:], layer.weight, layer.variance_epsilon)


@pytest.mark.parametrize('kind', MODELS)
def test_filters_log_probabilities_scores_and_gradients_are_those_of_transformers(
        kind, opened, grpo):
    """Though prompts are computed once for their completions, and tokens a few at a time."""
    more = [PASSES, '--n_fill_steps=2'] if kind == 'bert' else []
    networks, task, theirs = opened(kind, *more, 'plugins/top.py', '--temperature=0.7',
                                    '--top_p=0.9')
    ours = networks.policy
    norm_exactly(ours)
    norm_exactly(theirs)
    assert ours.block_size == {'gpt2': 50, 'bert': 63}.get(kind, 64)
    grpo.NUMBERS_AT_ONCE = 3 * ours.pad_id
    rollout = grpo.complete(ours, task.prompts('train', 3), 4)
    # Ranks add up the gradients of all weights, also where no group teaches anything.
    grpo.token_stats(ours, rollout.select(rollout.text_of < 0)).logp.sum().backward()
    assert all(p.grad is not None for p in ours.parameters())
    stats = grpo.token_stats(ours, rollout)
    views = [slow_logits(kind, theirs, view) for view in rollout.views]
    where = zip(rollout.view_of, rollout.position)
    z = torch.stack([views[view][position] for view, position in where])                   # (M, V)
    allowed = grpo.allowed_of((z / 0.7).softmax(1))
    assert rollout.more['allowed'].equal(allowed)
    allowed = Categorical(logits=z.masked_fill(~allowed, -torch.inf) / 0.7)
    actual = torch.stack((stats.logp, stats.entropy))
    expected = torch.stack((allowed.log_prob(rollout.token), Categorical(logits=z / 0.7).entropy()))
    close(actual, expected, atol=1e-5)
    weights = torch.randn(actual.shape)
    for values in (actual, expected):
        (weights * values).sum().backward()
    for name, p in theirs.named_parameters():
        if p.grad is not None:
            close(ours.network.get_parameter(name).grad, p.grad, atol=1e-4)
    if ours.causal:
        for text, score in zip(rollout.texts, grpo.judge_scores(ours, rollout.texts)):
            logits = slow_logits(kind, theirs, text)
            expected = Categorical(logits=logits).log_prob(text[text != 48]).mean()
            close(score, expected, atol=1e-5)


@pytest.mark.parametrize('kind, n_adapters, order', [
    ('llama', 21, []), ('bert', 19, [PASSES, '--fill_order=learned'])])
def test_a_reference_is_the_policy_without_its_adapters(kind, n_adapters, order, opened, grpo):
    """LoRA begins with the very log-probabilities of the network, and then all adapters learn. The
    reference also has the learned order with which the policy began."""
    networks, task, theirs = opened(kind, LORA, *order, '--kl_beta=0.1', '--lora_rank=3')
    rollout = grpo.complete(networks.policy, task.prompts('train', 3), 4)
    start, _ = grpo.load_network(theirs.name_or_path, 'cpu')
    expected = grpo.token_stats(start, rollout).logp
    moving = [p for name, p in networks.policy.named_parameters() if 'lora_B' in name]
    assert len(moving) == n_adapters            # all linear layers but the last one
    if order:
        moving.append(networks.policy.order.bias)
    for std in (0.0, 0.5):
        for p in moving:
            p.data += std * torch.randn_like(p)
        stats = grpo.token_stats(networks.policy, rollout, networks.reference)
        assert stats.logp_ref.equal(expected) and stats.logp.equal(expected) == (std == 0)
    stats.logp.sum().backward()
    assert all(p.grad.any() for p in moving)


REFUSED = {                     # a tokenizer, and how the network is another one
    'caps logits': ('llama', {'kind': 'Gemma2ForCausalLM', 'final_logit_softcapping': 200.0,
                              'head_dim': 8}),
    'looks ahead': ('llama', {'kind': 'BertLMHeadModel'}),
    'mixes padding with text': ('bert', {'kind': 'FNetForMaskedLM'}),
    'has no keys and values': ('llama', {'kind': 'MambaForCausalLM'}),
    'has fewer ids than its tokenizer': ('llama', {'kind': 'LlamaForCausalLM', 'vocab_size': 45})}


@pytest.mark.parametrize('why', REFUSED)
def test_a_folder_gives_the_logits_of_transformers_or_is_refused(why, folders, hf, tmp_path):
    """However little a cap changes. Logits are float32, whatever the precision of features."""
    kind, change = REFUSED[why]
    folder = shutil.copytree(folders / kind, tmp_path / 'folder')
    network, _ = hf.load_network(str(folder), 'cpu')
    tokens = torch.arange(8, 20)[None]
    exact = network.features(tokens)
    hf.devices.set_precision(network, 'bfloat16')
    rounded = network.features(tokens)
    assert not rounded.equal(exact) and network.logits(rounded.bfloat16()).dtype == torch.float32
    save_network(folder, **change)
    with pytest.raises(Mistake, match='folder'):
        hf.load_network(str(folder), 'cpu')


# ---- mistakes ------------------------------------------------------------------------------------
def edit(folder, name, **change):
    """Change a JSON file of a folder."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def without_its_output_layer(folder):
    save_network(folder, 'BertModel')
    edit(folder, 'config.json', architectures=['BertForMaskedLM'])


def quantized_by(name):
    return lambda folder: edit(folder, 'config.json', quantization_config={'quant_method': name})


SPOILT = {                      # a network, how its folder is spoilt, and what one reads then
    'no end of a text': (
        'llama', lambda x: edit(x, 'tokenizer_config.json', eos_token=None), 'set eos_token'),
    'no blank': ('bert', lambda x: edit(x, 'tokenizer_config.json', mask_token=None),
                 'set mask_token'),
    'no output layer': ('bert', without_its_output_layer, 'no weights for cls'),
    'no architectures': ('llama', lambda x: edit(x, 'config.json', architectures=None),
                         'no architectures'),
    'an adapter': ('llama', lambda x: (x / 'adapter_config.json').write_text('{}'), 'merge it'),
    'no weights': ('llama', lambda x: (x / 'model.safetensors').unlink(), 'no file named')} | {
    name: ('llama', quantized_by(name), rf'quantized \({name}\): take the unquantized network')
    for name in ('bitsandbytes', 'gptq', 'awq', 'fp8')}


@pytest.mark.parametrize('why', SPOILT)
def test_a_folder_that_cannot_be_used_is_refused_in_a_line_that_says_what_to_do(
        why, folders, hf, tmp_path):
    kind, spoil, words = SPOILT[why]
    folder = shutil.copytree(folders / kind, tmp_path / 'folder')
    spoil(folder)
    with pytest.raises(Mistake, match=words) as error:
        hf.load_network(str(folder), 'cpu')
    assert str(folder) in str(error.value) and '\n' not in str(error.value)


def test_a_template_that_leaves_out_the_prompt_is_refused(opened, folders):
    """Templates for pictures expect a list of parts, and show nothing of a text."""
    _, task, _ = opened('llama', '--chat_template=True')
    record = {'prompt': '1+2=', 'answer': '3'}
    for template, words in (
            ('{% for c in messages[0].content %}{{ c.text }}{% endfor %}', 'leaves out the prompt'),
            ("{{ raise_exception('no system role') }}", 'no system role'), (None, 'chat_template')):
        task.tok.theirs.chat_template = template
        with pytest.raises(Mistake, match=f"{words}.*in the record .*'1.2='"):
            task.encode(record)


def test_an_empty_prompt_needs_a_token_before_it(opened):
    """Nothing predicts a first token, so it would be drawn from all ids alike."""
    record = {'prompt': '', 'answer': '3'}
    _, task, _ = opened('llama')
    assert task.encode(record).n_prompt == 1
    _, task, _ = opened('gpt2')
    with pytest.raises(Mistake, match="empty prompt.*in the record .*'answer': '3'"):
        task.encode(record)


def test_a_name_that_nobody_knows_is_refused_in_a_line(hf, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(hub.constants, 'HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr(hub.constants, 'HF_HUB_OFFLINE', True)
    torch.save({'args': {'vocab_size': 3}, 'model': {}}, tmp_path / 'gpt.pt')
    for function, words in (
            (lambda: hf.file_of('gpt2'), 'no folder gpt2 here, and a name of the hub is OWNER'),
            (lambda: hf.file_of('mine/nothing'), 'no folder mine/nothing here.*the hub'),
            (lambda: hf.load_network(f'{tmp_path}/gpt.pt', 'cpu'), 'for networks of transformers'),
            (lambda: file_of(f'{folders}/llama', 'arithmetic'), 'word plugins/hf.py')):
        with pytest.raises(Mistake, match=words) as error:
            function()
        assert '\n' not in str(error.value)


@pytest.mark.parametrize('has_safetensors', [False, True])
def test_an_older_network_of_the_hub_comes_with_its_bin(has_safetensors, hf, folders, monkeypatch,
                                                        tmp_path):
    """And a newer one without: it would be downloaded twice."""
    source, folder = tmp_path / 'source', tmp_path / 'models--mine--net/snapshots/abc'
    shutil.copytree(folders / 'llama', source)
    torch.save({}, source / 'pytorch_model.bin')
    if not has_safetensors:
        (source / 'model.safetensors').unlink()

    def snapshot_download(repo, revision, allow_patterns):
        assert (repo, revision) in {('mine/net', 'v1'), ('mine/net', 'abc')}
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in allow_patterns:
            for file in source.glob(pattern):
                shutil.copy(file, folder)
        return str(folder)

    monkeypatch.setattr(hub, 'snapshot_download', snapshot_download)
    assert hf.file_of('mine/net@v1') == 'mine/net@abc'
    assert [x.name for x in folder.glob('*model*') if x.suffix != '.json'] == [
        'model.safetensors' if has_safetensors else 'pytorch_model.bin']


def test_a_machine_with_other_weights_is_refused(folders, hf, monkeypatch):
    """A float64 has two sums of 32 bits, and the first rank has found another sum."""
    def first_rank(function):
        mine = function()
        return mine if isinstance(mine, dict) else mine + 1
    monkeypatch.setattr(hf.devices, 'from_first_rank', first_rank)
    with pytest.raises(Mistake, match='other weights'):
        hf.load_network(f'{folders}/llama', 'cpu')


# ---- a CPU ---------------------------------------------------------------------------------------
def test_the_attention_of_one_query_is_that_of_transformers(hf):
    """Two heads of q share one of k and v. (In bfloat16: see the runs.)"""
    q, k, v = torch.randn(3, 4, 1, 8), torch.randn(3, 2, 5, 8), torch.randn(3, 2, 5, 6)
    inputs = SimpleNamespace(num_key_value_groups=2), q, k, v, None
    expected, _ = hf.sdpa_attention_forward(*inputs, scaling=0.3)
    actual, _ = hf.attention(*inputs, scaling=0.3)
    close(actual, expected, atol=1e-6)


@pytest.mark.parametrize('dtype, atol', [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.skipif(not torch.cpu._is_avx512_supported(), reason="no AVX-512")
@torch.no_grad()
def test_a_weight_is_packed_once_and_gives_the_same_products(dtype, atol, hf):
    """What is computed is another weight each time."""
    layers = torch.nn.Linear(8, 5), torch.nn.Linear(8, 7, bias=False)
    x = torch.randn(8, 3, 4).permute(1, 2, 0)

    def products(*_):
        return [layer(x) for layer in 2 * layers] + [hf.F.linear(x, 2 * layers[1].weight)]
    policy = SimpleNamespace(causal=True, head=layers[0], device=torch.device('cpu'))
    pack = Mock(side_effect=torch.ops.mkldnn._reorder_linear_weight)
    with patch('torch.ops.mkldnn._reorder_linear_weight', pack), torch.autocast(
            'cpu', dtype, enabled=dtype == torch.bfloat16):
        actual = hf.complete.__wrapped__(policy, None, 1, inner=products)
    assert pack.call_count == 3
    for y, z in zip(actual, products()):
        assert y.dtype == dtype
        close(y.float(), z, atol=atol)


# ---- runs ----------------------------------------------------------------------------------------
RUNS = {
    'of the hub': ('llama', '--chat_template=True --kl_beta=0.1 --generator=mine/net '
                            '--dtype=bfloat16'),
    'adapters': ('llama', f'{LORA} --kl_beta=0.1 --max_new_tokens=2 '
                          f'--generator=mine/net@{40 * "a"}'),
    'blanks': ('bert', f'{PASSES} --fill_order=learned --n_fill_steps=2')}


@pytest.mark.parametrize('name', RUNS)
def test_a_run_is_resumed_exactly_and_its_policy_leaves_as_it_came(
        name, grpo, folders, file, tmp_path, monkeypatch):
    """Also if the hub has another network by this name since then, and if the run was moved. Nobody
    asks the hub: all is in its cache."""
    def publish(commit, kind):
        root = tmp_path / 'hub/models--mine--net'
        shutil.copytree(folders / kind, root / 'snapshots' / commit)
        (root / 'refs').mkdir(exist_ok=True)
        (root / 'refs/main').write_text(commit)

    monkeypatch.setattr(hub.constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
    monkeypatch.setattr(hub.constants, 'HF_HUB_OFFLINE', True)
    publish(40 * 'a', 'llama')
    kind, more = RUNS[name]
    words = words_of(folders, kind) + more.split() + ['--eval_interval=6', '--eval_prompts=2']
    if name == 'adapters':
        import peft  # noqa: F401
    whole, parts, exported = [tmp_path / name for name in ('whole', 'parts', 'exported')]
    train(words, whole)
    stops = file('stop.py', STOP)
    train([*words, stops], parts)
    assert checkpoint_of(parts)['step'] == 3
    publish(40 * 'b', 'gpt2')
    train([*words, stops], parts, '--resume=True')
    assert_same(whole, parts)
    saved = checkpoint_of(whole)
    if name == 'adapters':      # nothing else has moments
        assert all('lora_' in weight for weight in saved['model'])
        assert len(saved['optimizers'][0]['state']) == len(saved['model'])
    moved = parts.rename(tmp_path / 'moved')
    fresh()
    _, networks, after, _ = sample.open_run(moved, [])
    assert networks.policy.args == after.args == saved['args']
    run('extras/export.py', str(whole), str(exported))
    torch.set_default_dtype(torch.float64)
    logits = []
    for path in (whole / 'ckpt.pt', exported, folders / kind):
        network, _ = grpo.load_network(str(path), 'cpu')
        logits.append(network.logits(network.features(torch.arange(8, 20)[None])))
    close(logits[0], logits[1], atol=1e-5)
    assert (logits[0] - logits[2]).abs().max() > 1e-3
