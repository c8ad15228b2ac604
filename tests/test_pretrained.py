"""Other people's models in the place of a GPT: small ones, made here, checked by transformers."""
import json
import signal

import pytest
import torch

transformers = pytest.importorskip('transformers')
import tokenizers

from data.dataset import BLANK, Prompts, prompts_of_text
from extras import pretrained
from model import complete, draw, load_network, log_probs
from processes import fails, interrupt_at_step, run, weights

close = torch.testing.assert_close
T = 12                      # positions in a sequence
CHAT = ("{{ bos_token }}{% for m in messages %}<u>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}")


def write_model(folder, kind):
    """Write a model of random weights: a Llama with grouped heads and tied weights, a GPT-2 without
    a bos, or a BERT."""
    torch.manual_seed(0)
    special = ['<s>', '</s>', '[CLS]', '[SEP]', '[MASK]', '<u>', '<a>']
    vocabulary = {piece: i for i, piece in enumerate(special + list('0123456789+=<>/sau'))}
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tok.decoder = tokenizers.decoders.Fuse()
    tok.add_special_tokens(special)
    names = {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'mask_token': '[MASK]'}
    sizes = {'vocab_size': len(vocabulary), 'hidden_size': 32, 'intermediate_size': 64,
             'num_hidden_layers': 3, 'num_attention_heads': 4, 'initializer_range': 0.4,
             'max_position_embeddings': 64}
    if kind == 'bert':
        network = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    elif kind == 'gpt2':
        names = {'eos_token': '</s>'}
        network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    else:
        names = {'eos_token': '</s>', 'bos_token': '<s>'}
        network = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            num_key_value_heads=2, tie_word_embeddings=True, **sizes))
    network.save_pretrained(folder)
    tok = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, chat_template=CHAT, **names)
    tok.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp('models')
    return {kind: write_model(home / kind, kind) for kind in ('llama', 'gpt2', 'bert')}


KINDS = pytest.mark.parametrize('kind', ['llama', 'gpt2', 'bert'])


def padded(tok, texts):
    rows = [tok.encode(text) + [tok.eos] for text in texts]
    return torch.tensor([row + [tok.pad] * (T - len(row)) for row in rows])     # (N, T)


def toy_prompts(model, k=4):
    """Return Prompts of several lengths: sums without answers, or with every other id blank."""
    tok = model.tok
    tokens = padded(tok, ['1+2=3', '12+13=25', '7+15=22'])
    first = torch.tensor([len(tok.encode(text)) for text in ('1+2=', '12+13=', '7+15=')])
    mask = torch.arange(T) >= first[:, None]
    if not model.causal:
        mask = (tokens != tok.pad) & (tokens != tok.eos) & (torch.arange(T) % 2 == 0)
    return Prompts(tokens, mask, tokens, torch.rand(3, k, T), torch.rand(3, T), tok)


# ---- the tokenizer -------------------------------------------------------------------------------


@KINDS
def test_text_becomes_ids_and_text_again(folders, kind):
    tok = pretrained.PretrainedTokenizer(folders[kind])
    assert tok.decode([*tok.encode('12+7=19'), tok.eos, tok.pad, tok.bos]) == '12+7=19\n'
    assert tok.tokenizer.convert_ids_to_tokens(tok.eos) == ('[SEP]' if kind == 'bert' else '</s>')
    prompts = prompts_of_text(f'1+{BLANK}_=3', tok, 1, 1, False, 12)
    ids = [i for i in prompts.tokens[0].tolist() if i != tok.pad]
    assert ids == [*tok.encode('1+'), tok.mask, tok.mask, *tok.encode('=3'), tok.eos]
    assert tok.decode(ids).count(BLANK) == 2


def test_special_tokens_are_ids_in_a_chat_and_letters_in_a_text(folders):
    for kind in ('llama', 'gpt2'):
        tok = pretrained.PretrainedTokenizer(folders[kind])
        ids = tok.encode_chat('1+2=')
        assert tok.tokenizer.convert_ids_to_tokens(ids) == ['<u>', *'1+2=', '</s>', '<a>']
        assert tok.decode(tok.encode('<u>1</s>')) == '<u>1</s>'
        assert tok.eos not in tok.encode('<u>1</s>')


# ---- the network ---------------------------------------------------------------------------------


@KINDS
def test_logits_and_gradient_equal_those_of_transformers(folders, kind):
    ours = pretrained.Pretrained(folders[kind])
    auto = transformers.AutoModelForCausalLM if ours.causal else transformers.AutoModelForMaskedLM
    theirs = auto.from_pretrained(folders[kind]).eval()
    tokens = padded(ours.tok, ['1+2=3', '12+13=25'])
    where = (tokens != ours.pad_id) & (torch.arange(T) % 2 == 1)
    expected = []
    for row, places in zip(tokens, where):              # one by one, without padding
        ids = row[row != ours.pad_id]
        places = places[:len(ids)]
        if kind == 'bert':                              # [CLS] text [SEP]
            ids = ids.masked_fill(places, ours.tok.tokenizer.mask_token_id).tolist()
            ids = torch.tensor([[ours.tok.tokenizer.cls_token_id, *ids]])
            expected.append(theirs(ids).logits[0, 1:][places])
        elif kind == 'llama':
            ids = torch.tensor([[ours.tok.tokenizer.bos_token_id, *ids]])
            expected.append(theirs(ids).logits[0, :-1][places])
        else:
            expected.append(theirs(ids[None]).logits[0, :-1][places[1:]])
    expected = torch.cat(expected)                                              # (U, V)
    logits = ours(tokens, where)
    close(logits, expected, atol=1e-4, rtol=1e-4)
    logits.logsumexp(-1).sum().backward()
    expected.logsumexp(-1).sum().backward()
    gradients = [[p.grad for p in model.parameters()] for model in (ours, theirs)]
    for gradient, other in zip(*gradients, strict=True):
        close(gradient, other, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize('kind, atol', [('llama', 1e-4), ('gpt2', 1e-10)])
def test_a_shared_prefix_has_the_value_and_gradient_of_whole_sequences(folders, kind, atol):
    """A Llama norms in float32 even here."""
    model = pretrained.Pretrained(folders[kind]).double()
    sizes = []
    model.network.get_input_embeddings().register_forward_hook(
        lambda embed, inputs, x: sizes.append(inputs[0].numel()))
    r = complete(model, toy_prompts(model, k=5))
    sizes.clear()
    shared = r.logits_of(model)
    whole = model(r.states, r.where)
    assert sizes[0] + sizes[1] < sizes[2]
    close(shared, whole, atol=atol, rtol=0)
    direction = torch.randn_like(whole)
    changes = torch.autograd.grad(shared - whole, list(model.parameters()), direction)
    assert max(change.abs().max() for change in changes) < 3 * atol


def test_the_output_layer_works_in_float32_under_bfloat16(folders):
    """Otherwise log-probabilities would be rounded to 8 bits."""
    model = pretrained.Pretrained(folders['llama'])
    tokens = padded(model.tok, ['1+2=3'])
    with torch.autocast('cpu', torch.bfloat16):
        logits = model(tokens, tokens != model.pad_id)
    assert logits.dtype == torch.float32 and not torch.equal(logits, logits.bfloat16().float())


@pytest.mark.parametrize('kind, n_fill_steps', [('llama', 1), ('bert', 1), ('bert', 3)])
@pytest.mark.parametrize('sampling', [{}, {'temperature': 0.7, 'top_p': 0.9}])
def test_what_learns_would_sample_the_same_tokens(folders, kind, n_fill_steps, sampling):
    model = pretrained.Pretrained(folders[kind])
    r = complete(model, toy_prompts(model), n_fill_steps=n_fill_steps, **sampling)
    logp = log_probs(r.logits_of(model), sampling.get('temperature', 1.0), r.kept)      # (U, V)
    uniforms = r.prompts.uniforms.flatten(0, 1)[r.sequence_of, r.position]              # (M,)
    again = draw(logp[r.distribution_of], uniforms[:, None])
    assert torch.equal(again[:, 0], r.actions)


def test_greedy_decoding_equals_generate_of_transformers(folders):
    model = pretrained.Pretrained(folders['llama'])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folders['llama']).eval()
    prompts = toy_prompts(model, k=1)
    sequences = complete(model, prompts, top_k=1).sequences
    begin = torch.tensor([model.tok.tokenizer.bos_token_id])
    for sequence, mask, tokens in zip(sequences, prompts.mask, prompts.tokens):
        ids = torch.cat((begin, tokens[~mask]))[None]
        generated = theirs.generate(ids, do_sample=False, max_length=T + 1,
                                    eos_token_id=model.tok.eos)[0, 1:]
        assert sequence[sequence != model.pad_id].tolist() == generated.tolist()


# ---- a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('flags', [[], ['--chat_template=True'], ['--dtype=bfloat16']])
def test_a_run_is_resumed_exactly_and_its_policy_leaves_as_it_came(
        flags, folders, repository, tmp_path):
    pairs = [{'prompt': f'{a}+{b}=', 'answer': str(a + b)} for a in range(9) for b in range(19)]
    (tmp_path / 'mine.jsonl').write_text('\n'.join(map(json.dumps, pairs)))
    words = [repository, 'train_grpo.py', 'config/grpo_smollm2.py',
             f'--dataset={tmp_path}/mine.jsonl', f'--generator={folders["llama"]}',
             '--max_iters=4', '--eval_interval=2', '--eval_prompts=4', '--batch_size=2',
             '--gradient_accumulation_steps=2', '--learning_rate=1e-3', '--device=cpu',
             '--rewards={"distinct": 1.0}', *flags]
    code, text = run(*words, f'--out_dir={tmp_path}/whole')
    assert code == 0 and 'line to beat' in text, text
    code, _ = run(*words, f'--out_dir={tmp_path}/parts', before=interrupt_at_step(1))
    assert code == 128 + signal.SIGINT
    code, text = run(*words, f'--out_dir={tmp_path}/parts', '--resume=True')
    assert code == 0, text
    end = weights(tmp_path / 'whole/ckpt.pt')
    assert end.equal(weights(tmp_path / 'parts/ckpt.pt'))

    policy, _ = load_network(tmp_path / 'whole')
    start, _ = load_network(folders['llama'])
    assert not torch.equal(*[next(model.parameters()) for model in (policy, start)])
    pretrained.save_pretrained(policy, tmp_path / 'exported')
    again, _ = load_network(str(tmp_path / 'exported'))
    prompts = toy_prompts(policy)
    assert complete(again, prompts).sequences.equal(complete(policy, prompts).sequences)


def test_a_folder_that_is_no_model_is_refused(repository, tmp_path):
    fails([str(tmp_path)], repository, 'train_grpo.py', f'--generator={tmp_path}')
