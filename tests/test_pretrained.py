"""Other people's models in the place of a GPT: small ones, made here, checked by transformers."""
import functools
import json
import signal

import pytest
import torch
from torch import nn

transformers = pytest.importorskip('transformers')
import tokenizers

from data.dataset import BLANK, Dataset, Prompts, prompts_of_text
from extras import pretrained
from model import complete, draw, load_network, log_probs
from processes import REPOSITORY, at_step, run, succeeds, weights, write

close = torch.testing.assert_close
SUMS = 'sums.jsonl'
CHAT = ("{{ bos_token }}{% for m in messages %}<u>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}")
MODELS = {'llama': 'LlamaForCausalLM', 'gpt2': 'GPT2LMHeadModel', 'bert': 'BertForMaskedLM'}
NAMES = {
    'llama': {'eos_token': '</s>', 'bos_token': '<s>'},
    'gpt2': {'eos_token': '</s>'},
    'bert': {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'mask_token': '[MASK]'},
}
KINDS = pytest.mark.parametrize('kind', MODELS)


@functools.cache
def folder_of(kind):
    """Write a model of random weights: a Llama with grouped heads and tied weights, a GPT-2 without
    a bos, or a BERT. Return its folder."""
    torch.manual_seed(0)
    folder = REPOSITORY / kind
    special = ['<s>', '</s>', '[CLS]', '[SEP]', '[MASK]', '<u>', '<a>']
    vocabulary = {piece: i for i, piece in enumerate(special + list('0123456789+=<>/sau'))}
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tok.decoder = tokenizers.decoders.Fuse()
    tok.add_special_tokens(special)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tok, chat_template=CHAT,
                                         **NAMES[kind]).save_pretrained(folder)
    network = getattr(transformers, MODELS[kind])
    network(network.config_class(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        initializer_range=0.4, max_position_embeddings=64)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def sums():
    pairs = [{'prompt': f'{a}+{b}=', 'answer': str(a + b)} for a in range(9) for b in range(19)]
    write(SUMS, '\n'.join(map(json.dumps, pairs)))


def toy_prompts(model):
    """Return Prompts of several lengths: sums without answers, or with blanks anywhere."""
    data = Dataset(SUMS, model.tok, max_new_tokens=6)
    return data.prompts('train', 3, 4, 1, 0, model.causal, 0, 'random',
                        'answer' if model.causal else 'random', 0.3, 0.6, 4)


# ---- the tokenizer -------------------------------------------------------------------------------


@KINDS
def test_text_becomes_ids_and_text_again_and_names_of_special_tokens_are_letters(kind):
    tok = pretrained.PretrainedTokenizer(folder_of(kind))
    ids = tok.encode('<u>12+7=19</s>') + [tok.eos, tok.pad, tok.bos]
    assert tok.decode(ids) == '<u>12+7=19</s>\n' and ids.count(tok.eos) == 1
    blank = torch.zeros(1, 12).long()
    others = Prompts(blank, blank, blank, blank, blank, tok)
    prompts = prompts_of_text(f'1+{BLANK}_=3', others, False)
    assert tok.decode(prompts.tokens[0].tolist()) == f'1+{BLANK}{BLANK}=3\n'
    chat = tok.tokenizer.convert_ids_to_tokens(tok.encode_chat('1+2='))
    assert chat == ['<u>', *'1+2=', '</s>', '<a>']


# ---- the network ---------------------------------------------------------------------------------


@KINDS
def test_logits_and_gradient_equal_those_of_transformers(kind):
    ours = pretrained.Pretrained(folder_of(kind))
    theirs = getattr(transformers, MODELS[kind]).from_pretrained(folder_of(kind)).eval()
    special = ours.tok.tokenizer
    tokens = toy_prompts(ours).tokens
    where = (tokens < ours.tok.vocab_size) & (torch.arange(tokens.size(1)) % 2 == 1)
    begin = {'llama': [special.bos_token_id], 'gpt2': [], 'bert': [special.cls_token_id]}[kind]
    expected = []
    for row, places in zip(tokens, where):              # one by one, without padding
        ids = row[row < ours.tok.vocab_size]
        places = places[:len(ids)].nonzero()[:, 0]
        if kind == 'bert':
            ids[places] = special.mask_token_id
        logits = theirs(torch.tensor([begin + ids.tolist()])).logits[0]
        expected.append(logits[places + len(begin) - int(ours.causal)])
    expected = torch.cat(expected)                                              # (U, V)
    logits = ours(tokens, where)
    close(logits, expected, atol=1e-4, rtol=1e-4)
    gradients = [torch.autograd.grad(values.logsumexp(-1).sum(), list(model.parameters()),
                                     allow_unused=True)
                 for values, model in ((logits, ours), (expected, theirs))]
    close(*gradients, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize('kind, n_fill_steps', [('llama', 1), ('gpt2', 1), ('bert', 1),
                                                ('bert', 3)])
def test_sampling_and_learning_agree_and_a_shared_prefix_is_computed_once(kind, n_fill_steps):
    """The gradient through a shared prefix is that of whole sequences. A Llama norms in float32
    even here."""
    model = pretrained.Pretrained(folder_of(kind)).double()
    r = complete(model, toy_prompts(model), n_fill_steps, temperature=0.7, top_p=0.9)
    sizes = []
    model.network.get_input_embeddings().register_forward_hook(
        lambda embed, inputs, x: sizes.append(inputs[0].numel()))
    shared = r.logits_of(model)
    n_shared = sum(sizes)
    whole = model(r.states, r.where)
    assert not model.causal or n_shared < sum(sizes) - n_shared
    atol = 1e-4 if kind == 'llama' else 1e-10
    close(shared, whole, atol=atol, rtol=0)
    position = r.where.nonzero()[r.distribution_of, 1]
    uniforms = r.prompts.uniforms.flatten(0, 1)[r.sequence_of, position]                # (M,)
    logp_full = log_probs(shared, 0.7, r.kept)[r.distribution_of]
    assert draw(logp_full, uniforms[:, None])[:, 0].equal(r.actions)    # it would sample the same
    direction = torch.randn_like(whole)
    changes = torch.autograd.grad(shared - whole, list(model.parameters()), direction,
                                  allow_unused=True)
    assert max(change.abs().max() for change in changes if change is not None) < 3 * atol


def test_the_output_layer_works_in_float32_under_bfloat16():
    """Otherwise log-probabilities would be rounded to 8 bits."""
    model = pretrained.Pretrained(folder_of('llama'))
    prompts = toy_prompts(model)
    with torch.autocast('cpu', torch.bfloat16):
        logits = model(prompts.tokens, prompts.mask)
    assert logits.dtype == torch.float32 and not logits.equal(logits.bfloat16().float())


# ---- a run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('flag', ['--temperature=1', '--chat_template=True', '--dtype=bfloat16'])
def test_a_run_is_resumed_exactly_and_its_policy_leaves_as_it_came(flag):
    words = ['train_grpo.py', 'config/grpo_smollm2.py', f'--dataset={SUMS}', '--max_iters=4',
             f'--generator={folder_of("llama")}', '--eval_interval=2', '--eval_prompts=4',
             '--batch_size=2', '--gradient_accumulation_steps=2', '--learning_rate=1e-3',
             '--device=cpu', '--rewards={"distinct": 1.0}', flag]
    succeeds(*words, '--out_dir=whole')
    assert run(*words, '--out_dir=parts', before=at_step(1, signal.SIGINT))[0] == 130
    succeeds(*words, '--out_dir=parts', '--resume=True')
    assert weights('whole').equal(weights('parts'))

    policy, _ = load_network('whole')
    pretrained.save_pretrained(policy, 'exported')
    start, again, policy = [
        nn.utils.parameters_to_vector(load_network(folder)[0].parameters())
        for folder in (folder_of('llama'), 'exported', 'whole')]
    assert again.equal(policy) and not again.equal(start)
