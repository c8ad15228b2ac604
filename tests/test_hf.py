"""Other people's models in the place of a GPT: small ones, made here, checked by transformers."""
import functools
import json
import os
import pathlib
import shutil
import signal

import pytest
import torch
from torch import nn

transformers = pytest.importorskip('transformers')
import safetensors.torch
import tokenizers

import hf
from dataset import Dataset, read_texts
from judge import judge_sequences
from processes import REPOSITORY, at_step, fails, refused, run, succeeds, weights, write
from pretrain import complete, load_network
from rollout import draw, log_probs, token_stats

close = torch.testing.assert_close
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
    letters = list('0123456789+=<>/sauACDEFGHIKLMNPQRSTVWY')
    vocabulary = {piece: i for i, piece in enumerate(special + letters)}
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
    """Three files: sums to be continued, sums with marked blanks, and those without answers, but
    with a column that says what is held out."""
    for name, prompt, answer in (('sums.jsonl', '{0}+{1}=', '{0}'),
                                 ('blanks.jsonl', '{0}{1}+_=1_', '{0}{1}+3=1{0}')):
        lines = [json.dumps({'prompt': prompt.format(a, b), 'answer': answer.format(a, b)})
                 for a in range(9) for b in range(5, 14)]
        write(name, '\n'.join(lines))
    lines = [json.dumps({'prompt': f'{a}_+_=__', 'held_out': a > 6}) for a in range(9)]
    write('alone.jsonl', '\n'.join(lines))


def toy_prompts(model):
    """Return three Prompts of several lengths: sums without answers, or with blanks anywhere."""
    data = Dataset(*read_texts('sums.jsonl')[:2], model.tok, model.causal, max_new_tokens=6,
                   blank_kind='answer' if model.causal else 'random')
    return data.prompts('train', 3, 4, 1)


# ---- the tokenizer -------------------------------------------------------------------------------


@KINDS
def test_text_becomes_ids_and_text_again_and_names_of_special_tokens_are_tokens(kind):
    tok = hf.PretrainedTokenizer(folder_of(kind))
    ids = tok.encode('<u>12+7=19<a>')
    assert tok.tokenizer.convert_ids_to_tokens(ids) == ['<u>', *'12+7=19', '<a>']
    assert tok.decode(ids + [tok.eos, tok.pad, tok.bos]) == '<u>12+7=19<a>\n'
    assert tok.decode([tok.blank_id] * 2 + [tok.eos] * 2) == '__\n\n'
    assert tok.completion_of(ids + [tok.eos]) == '12+7=19'      # as TRL gives it to rewards


def test_a_text_that_goes_on_gets_no_space_in_front(tmp_path):
    """Llama 2 puts one in front of each text, also of what a world says in another one."""
    vocabulary = {piece: i for i, piece in enumerate(['</s>', '\u2581', *'\n36a'])}
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tok.normalizer = tokenizers.normalizers.Prepend('\u2581')
    transformers.PreTrainedTokenizerFast(tokenizer_object=tok,
                                         eos_token='</s>').save_pretrained(tmp_path)
    tok = hf.PretrainedTokenizer(str(tmp_path))
    assert tok.encode('36') == [1, 3, 4] and tok.encode('36', goes_on=True) == [3, 4]


@KINDS
def test_a_chat_has_the_ids_of_transformers_and_one_bos(kind):
    tok = hf.PretrainedTokenizer(folder_of(kind))
    expected = tok.tokenizer.apply_chat_template(
        [{'role': 'user', 'content': '1+2='}], add_generation_prompt=True, return_dict=False)
    bos = [tok.tokenizer.bos_token_id] if kind == 'llama' else []   # which the network adds
    assert bos + tok.encode_chat('1+2=') == expected and len(expected) == len(bos) + 7
    tok.tokenizer.chat_template = '{{ messages[0].content }}'
    if kind == 'llama':
        refused('begins without the bos', tok.encode_chat, '1+2=')


def changed(kind, name, change):
    """Copy the folder of a model, apply change() to a file of it, and return its path."""
    folder = shutil.copytree(folder_of(kind), name)
    change(folder)
    return folder


def test_ids_with_holes_are_all_known_and_blanks_need_a_mask_token():
    """An id behind a hole, such as that of eos, could not be sampled if ids were only counted."""
    def move_eos(folder):
        path = pathlib.Path(folder, 'tokenizer.json')
        text = json.loads(path.read_text())
        text['model']['vocab']['</s>'] = 50
        text['added_tokens'][1]['id'] = 50
        path.write_text(json.dumps(text))

    tok = hf.PretrainedTokenizer(changed('llama', 'holes', move_eos))
    assert tok.eos == 50 and tok.vocab_size == 51 and len(tok.tokenizer) < 51

    def drop_mask(folder):
        tok = transformers.AutoTokenizer.from_pretrained(folder)
        tok.mask_token = None
        tok.save_pretrained(folder)

    refused('has no mask token', hf.Pretrained, changed('bert', 'no_mask', drop_mask))


def test_a_folder_that_lacks_weights_is_refused():
    def drop_weight(folder):
        path = f'{folder}/model.safetensors'
        weights = safetensors.torch.load_file(path)
        del weights['model.layers.1.mlp.up_proj.weight']
        safetensors.torch.save_file(weights, path, {'format': 'pt'})

    refused('lacks weights of a LlamaForCausalLM: ', hf.Pretrained,
            changed('llama', 'broken', drop_weight))


# ---- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize('kind, n_fill_steps', [('llama', 1), ('gpt2', 1), ('bert', 1),
                                                ('bert', 3)])
def test_sampling_logits_and_gradient_equal_those_of_transformers(kind, n_fill_steps):
    """A shared prefix is computed once, with the gradient of whole sequences. A Llama norms in
    float32 even here."""
    ours = hf.Pretrained(folder_of(kind)).double()
    theirs = getattr(transformers, MODELS[kind]).from_pretrained(
        folder_of(kind), attn_implementation='eager').double().eval()
    passes = {} if ours.causal else {'n_fill_steps': n_fill_steps}
    r = complete(ours, toy_prompts(ours), **passes, temperature=0.7, top_p=0.9)
    sizes = []
    ours.network.get_input_embeddings().register_forward_hook(
        lambda embed, inputs, x: sizes.append(inputs[0].numel()))
    states, state_of = r.states, r.state_of
    n, t = r.is_sampled.nonzero(as_tuple=True)                                  # (M,) each
    state_of = state_of[r.pass_of[n, t].clamp(max=len(state_of) - 1), n]
    logits = ours.logits(ours(states, r.start)[state_of, t])                    # (M, V)
    assert sum(sizes) < 0.8 * states.numel() or not ours.causal
    special = ours.tok.tokenizer
    begin = {'llama': [special.bos_token_id], 'gpt2': [], 'bert': [special.cls_token_id]}[kind]
    expected = []
    for state in states:                                # one by one, without padding
        ids = state[state != ours.pad_id]
        ids[ids == ours.blank_id] = special.mask_token_id or 0
        expected.append(theirs(torch.tensor([begin + ids.tolist()])).logits[0])
    places = t + len(begin) - int(ours.causal)
    expected = torch.stack([expected[s][place] for s, place in zip(state_of, places)])
    close(logits, expected, atol=1e-4, rtol=1e-4)
    gradients = [torch.autograd.grad(values.logsumexp(-1).sum(), list(model.parameters()),
                                     allow_unused=True)
                 for values, model in ((logits, ours), (expected, theirs))]
    close(*gradients, atol=1e-3, rtol=1e-3)
    logp = log_probs(logits, 0.7, r.kept)                                       # (M, V)
    uniforms = r.prompts.uniforms.flatten(0, 1)[n, t]
    assert draw(logp, uniforms).equal(r.sequences[n, t])        # it would sample the same


@KINDS
def test_the_longest_sequence_leaves_a_place_for_bos(kind):
    """A folder of ours has 64 places."""
    model = hf.Pretrained(folder_of(kind))
    features = model(torch.full((1, model.block_size), 20))
    assert features.size(1) == model.block_size == 63


def test_a_network_whose_keys_change_in_long_texts_gets_none():
    """Beyond 16 places a Phi-3 turns all keys by other angles, those of a cache excepted."""
    shutil.copytree(folder_of('llama'), 'phi')
    rope = {'rope_type': 'longrope', 'rope_theta': 1e4, 'original_max_position_embeddings': 16,
            'short_factor': [1.0] * 4, 'long_factor': [4.0] * 4}
    transformers.Phi3ForCausalLM(transformers.Phi3Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=45, max_position_embeddings=64, pad_token_id=0,
        initializer_range=0.4, original_max_position_embeddings=16, rope_scaling=rope,
    )).save_pretrained('phi')
    model = hf.Pretrained('phi')
    assert model.block_size == 15
    tokens = 7 + torch.arange(30).view(2, 15)
    cache = model.new_cache()
    inputs = nn.functional.pad(tokens, (1, 0), value=model.bos_id)
    steps = [model.trunk(inputs[:, i:i + 1], cache) for i in range(16)]
    close(torch.cat(steps, 1)[:, :-1], model(tokens), atol=1e-5, rtol=1e-5)


def test_a_judge_without_a_bos_scores_completions_but_no_empty_prompt():
    judge = hf.Pretrained(folder_of('gpt2'))
    r = complete(judge, toy_prompts(judge))
    expected = token_stats(r, judge).logp.sum(1) / r.lengths
    close(judge_sequences(judge, r.sequences, r.is_sampled), expected)
    r.prompts.blank[1] = True
    with pytest.raises(AssertionError, match='no prompt may be empty'):
        complete(judge, r.prompts)


def test_the_output_layer_works_in_float32_under_bfloat16():
    """Otherwise log-probabilities would be rounded to 8 bits."""
    model = hf.Pretrained(folder_of('llama'))
    prompts = toy_prompts(model)
    with torch.autocast('cpu', torch.bfloat16):
        logits = model.logits(model(prompts.tokens))
    assert logits.dtype == torch.float32 and not logits.equal(logits.bfloat16().float())


SIZES = {'hidden_size': 8, 'intermediate_size': 8, 'num_hidden_layers': 1, 'vocab_size': 45,
         'num_attention_heads': 1, 'num_key_value_heads': 1, 'head_dim': 8, 'pad_token_id': 1,
         'n_embd': 8, 'n_layer': 1, 'n_head': 1, 'max_position_embeddings': 64}


@pytest.mark.parametrize('kind, more, words', [
    ('GraniteForCausalLM', {'logits_scaling': 2.0}, None),      # which the features have, too
    ('RobertaForMaskedLM', {}, None),
    ('Gemma2ForCausalLM', {'final_logit_softcapping': 30.0}, 'other logits'),
    ('BertLMHeadModel', {'is_decoder': False}, 'other logits'),         # it is not causal
    ('FNetForMaskedLM', {}, 'other logits'),                    # it mixes padding with text
    ('LlamaForCausalLM', {'vocab_size': 44}, 'index out of range')])    # 45 ids of the tokenizer
def test_a_network_gives_the_logits_of_transformers_or_is_refused(kind, more, words):
    """Also where a run has bfloat16, and however little a cap changes."""
    folder = shutil.copytree(folder_of('bert' if 'Masked' in kind else 'llama'), kind)
    network = getattr(transformers, kind)
    network(network.config_class(**SIZES | more)).save_pretrained(folder)
    with torch.autocast('cpu', torch.bfloat16):
        if words:
            with pytest.raises(Exception, match=words):
                hf.Pretrained(folder)
        else:
            hf.Pretrained(folder)


# ---- a run ---------------------------------------------------------------------------------------


CHAT_RUN = ['config/grpo_problems.py', '--dataset=sums.jsonl', '--dtype=bfloat16',
            '--max_new_tokens=2']               # so that completions are equal now and then
BLANKS_RUN = ['extras/studies/grpo_sums.py', '--dataset=blanks.jsonl', '--blank_kind=marked',
              '--max_new_tokens=0', '--n_fill_steps=2']


def words_of(kind, *words):
    """Return the command line of a run of a network of transformers."""
    return ['train_grpo.py', *words, f'--generator={folder_of(kind)}', '--max_iters=2',
            '--eval_interval=2', '--eval_prompts=4', '--batch_size=2', '--learning_rate=1e-3',
            '--gradient_accumulation_steps=2', '--device=cpu', '--rewards={"distinct": 1.0}']


@pytest.mark.parametrize('kind, words', [('llama', CHAT_RUN), ('bert', BLANKS_RUN)])
def test_a_run_is_resumed_exactly_and_its_policy_leaves_as_it_came(kind, words):
    folder, words = folder_of(kind), words_of(kind, *words)
    succeeds(*words, '--out_dir=whole')
    assert run(*words, '--out_dir=parts', before=at_step(0, signal.SIGINT))[0] == 130
    succeeds(*words, '--out_dir=parts', '--resume=True')
    assert weights('whole').equal(weights('parts'))

    succeeds('extras/export.py', 'whole', 'exported')
    start, again, policy = [
        nn.utils.parameters_to_vector(load_network(path)[0].parameters())
        for path in (folder, 'exported', 'whole')]
    assert again.equal(policy) and not again.equal(start)
    fails('exported is there already', 'extras/export.py', 'whole', 'exported')
    os.rename(folder, f'{folder}-elsewhere')
    try:
        text = fails('whole cannot be read', 'extras/export.py', 'whole', 'again')
    finally:
        os.rename(f'{folder}-elsewhere', folder)        # other tests need it
    assert f"'{folder}'" in text
