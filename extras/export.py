"""The way out: a policy or generator as a folder that transformers loads.

    python extras/export.py out-causal my-policy            # a run, or a checkpoint file

Our GPT leaves as a Qwen3, a pretrained model as what it is."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import fail, new_file

import torch
import torch.nn.functional as F

from data.dataset import SPECIALS
from model import load_gpt, norm


def qwen3_config(model):
    """Our GPT in the words of Hugging Face: a Qwen3 whose norms are all ones. The gated network
    relu(gate x) * (up x), with gate = up, is our relu(up x)^2."""
    args = model.args
    size = model.vocab_size + 3
    return {
        'architectures': ['Qwen3ForCausalLM'], 'model_type': 'qwen3', 'hidden_act': 'relu',
        'vocab_size': size, 'hidden_size': args['n_embd'], 'intermediate_size': 4 * args['n_embd'],
        'num_hidden_layers': args['n_layer'], 'num_attention_heads': args['n_head'],
        'num_key_value_heads': args['n_head'], 'head_dim': args['n_embd'] // args['n_head'],
        'max_position_embeddings': args['block_size'] + 1, 'rope_theta': 10000.0,
        'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0},
        'rms_norm_eps': torch.finfo(torch.float32).eps, 'attention_bias': False,
        'tie_word_embeddings': False, 'dtype': 'float32', 'bos_token_id': model.bos_id,
        'eos_token_id': model.tok.eos, 'pad_token_id': model.pad_id}


def qwen3_weights(model):
    """The weights under the names that Qwen3 has for them, float32."""
    n_embd = model.args['n_embd']
    ones = torch.ones(n_embd)
    ones_of_head = torch.ones(n_embd // model.args['n_head'])
    # The norm of the embedding has no weights, so it can be applied to the rows once.
    weights = {'model.embed_tokens.weight': norm(model.embed.weight), 'model.norm.weight': ones,
               'lm_head.weight': F.pad(model.head.weight, (0, 0, 0, 3))}    # no output: specials
    for i, block in enumerate(model.blocks):
        q, k, v = block.qkv.weight.view(3, n_embd, n_embd)
        weights |= {f'model.layers.{i}.{name}.weight': value for name, value in {
            'self_attn.q_proj': q, 'self_attn.k_proj': k, 'self_attn.v_proj': v,
            'self_attn.o_proj': block.proj.weight, 'self_attn.q_norm': ones_of_head,
            'self_attn.k_norm': ones_of_head, 'mlp.gate_proj': block.up.weight,
            'mlp.up_proj': block.up.weight, 'mlp.down_proj': block.down.weight,
            'input_layernorm': ones, 'post_attention_layernorm': ones}.items()}
    return {name: value.detach().float().contiguous().clone() for name, value in weights.items()}


def char_tokenizer(tok):
    """tokenizer.json of characters: byte pairs without merges, and a BOS in front of every text."""
    names = {f'<|{name}|>': tok.base + i for i, name in enumerate(SPECIALS)}
    added = [{'id': i, 'content': name, 'special': True, 'normalized': False, 'lstrip': False,
              'rstrip': False, 'single_word': False} for name, i in names.items()]
    bos = {'id': '<|bos|>', 'type_id': 0}
    return {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added,
        'normalizer': None, 'pre_tokenizer': None, 'decoder': {'type': 'Fuse'},
        'post_processor': {
            'type': 'TemplateProcessing',
            'single': [{'SpecialToken': bos}, {'Sequence': {'id': 'A', 'type_id': 0}}],
            'pair': [{'SpecialToken': bos}, {'Sequence': {'id': 'A', 'type_id': 0}},
                     {'Sequence': {'id': 'B', 'type_id': 1}}],
            'special_tokens': {'<|bos|>': {'id': '<|bos|>', 'ids': [tok.bos],
                                           'tokens': ['<|bos|>']}}},
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': None,
                  'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                  'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False,
                  'vocab': {'<|eos|>': tok.eos} | tok.ids | names, 'merges': []}}


def export_to(folder, model):
    """Writes a folder that transformers loads; see qwen3_config()."""
    try:
        from safetensors.torch import save
    except ImportError as e:
        fail(f"no export: {e}; pip install safetensors")
    tok = model.tok
    note = ("a causal model: AutoModelForCausalLM.from_pretrained(folder).generate() continues a "
            "text")
    if not model.causal:
        note = ("a model that fills blanks: give it a 4-dimensional attention mask of 0, so that "
                f"each position sees all, and id {tok.mask} in the blanks, without a BOS")
    files = {
        'config.json': qwen3_config(model),
        'generation_config.json': {             # the special ids have no output that was learned
            'bos_token_id': tok.bos, 'eos_token_id': tok.eos, 'pad_token_id': tok.pad,
            'suppress_tokens': [tok.mask, tok.bos, tok.pad], 'do_sample': True}}
    if tok.kind == 'char':
        files['tokenizer.json'] = char_tokenizer(tok)
        files['tokenizer_config.json'] = {
            'tokenizer_class': 'PreTrainedTokenizerFast', 'bos_token': '<|bos|>',
            'pad_token': '<|pad|>', 'mask_token': '<|mask|>', 'eos_token': '<|eos|>',
            'clean_up_tokenization_spaces': False,
            'model_input_names': ['input_ids', 'attention_mask']}
    else:
        note += (". Its tokenizer is GPT-2's own: AutoTokenizer.from_pretrained('gpt2'). Put the "
                 f"BOS, id {tok.bos}, in front of a text")
    for name, content in files.items():
        with new_file(f'{folder}/{name}', 'w') as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
    with new_file(f'{folder}/README.md', 'w') as file:
        file.write(f"Exported from a small GPT, {note}.\n")
    with new_file(f'{folder}/model.safetensors') as file:
        file.write(save(qwen3_weights(model), metadata={'format': 'pt'}))
    print(f"wrote {folder}: {', '.join(files)}, model.safetensors, README.md")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        fail("expected a run or a checkpoint, and a new folder: python extras/export.py out-causal "
             "my-policy")
    source, folder = sys.argv[1:]
    if os.path.exists(folder):
        fail(f"{folder} is there already; expected the name of a new folder")
    model = load_gpt(source if os.path.isfile(source) else f'{source}/ckpt.pt')
    if 'folder' in model.args:                  # another library's
        from extras.pretrained import save
        save(model, folder)
    else:
        export_to(folder, model)
