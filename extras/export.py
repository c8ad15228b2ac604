"""The way out: a policy or generator as a folder that transformers loads.

    python extras/export.py out-causal my-policy            # a run, or a checkpoint file

Our GPT leaves as a GPT-NeoX, a pretrained model as what it is."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import fail

import torch

from data.dataset import SPECIALS
from model import load_gpt, norm

try:
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast
except ImportError as e:
    fail(f"no export: {e}; pip install transformers")


@torch.no_grad()
def save_gpt(model, folder):
    """Writes our GPT as a GPT-NeoX whose biases are all 0, and whose norms weigh all the same."""
    args = model.args
    if args['positions'] != 'rotary':
        fail(f"positions = {args['positions']!r}: expected 'rotary' for an export; no model of "
             "transformers has our learned ones")
    C = args['n_embd']
    V = model.vocab_size
    ids = {'bos_token_id': model.bos_id, 'eos_token_id': model.tok.eos,
           'pad_token_id': model.pad_id}
    neox = GPTNeoXForCausalLM(GPTNeoXConfig(
        vocab_size=V + 3, hidden_size=C, intermediate_size=4 * C, num_hidden_layers=args['n_layer'],
        num_attention_heads=args['n_head'], hidden_act='relu', attention_bias=False,
        max_position_embeddings=args['block_size'] + 1, use_parallel_residual=False,
        rotary_pct=1.0, **ids))
    # The norm of the embedding has no weights, so it can be applied to the rows once.
    neox.get_input_embeddings().weight.copy_(norm(model.embed.weight))
    head = neox.get_output_embeddings().weight
    head.zero_()[:V] = model.head.weight        # no output was learned for the specials
    for layer, block in zip(neox.base_model.layers, model.blocks):
        heads = block.qkv.weight.view(3, args['n_head'], -1, C).transpose(0, 1)     # (H, 3, D, C)
        layer.attention.query_key_value.weight.copy_(heads.reshape(3 * C, C))
        layer.attention.dense.weight.copy_(block.proj.weight)
        layer.mlp.dense_h_to_4h.weight.copy_(block.up.weight)
        layer.mlp.dense_4h_to_h.weight.copy_(block.down.weight)
        layer.mlp.dense_h_to_4h.bias.zero_()
        layer.mlp.dense_4h_to_h.bias.zero_()
    neox.generation_config.suppress_tokens = [V, V + 1, V + 2]
    neox.generation_config.do_sample = True
    neox.save_pretrained(folder)
    if model.tok.kind == 'char':
        save_tokenizer(model.tok, folder)
    else:
        print(f"Its tokenizer is GPT-2's own, with a BOS, id {model.bos_id}, in front of a text.")
    if not model.causal:
        print("It fills blanks: give it a 4-dimensional attention mask of 0, so that each position "
              f"sees all, and id {model.mask_id} in the blanks, without a BOS.")


def save_tokenizer(tok, folder):
    """Characters as byte pairs without merges. A BOS begins every text."""
    names = {f'<|{name}|>': tok.base + i for i, name in enumerate(SPECIALS)}
    vocabulary = {'<|eos|>': tok.eos} | tok.ids | names
    fast = Tokenizer(models.BPE(vocabulary, []))
    fast.decoder = decoders.Fuse()
    fast.post_processor = processors.TemplateProcessing(
        '<|bos|> $A', special_tokens=[('<|bos|>', tok.bos)])
    PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token='<|bos|>', eos_token='<|eos|>', pad_token='<|pad|>',
        mask_token='<|mask|>', model_input_names=['input_ids', 'attention_mask']
    ).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        fail("expected a run or a checkpoint, and a new folder: python extras/export.py out-causal "
             "my-policy")
    source, folder = sys.argv[1:]
    if os.path.exists(folder):
        fail(f"{folder} is there already; expected the name of a new folder")
    model = load_gpt(source if os.path.isfile(source) else f'{source}/ckpt.pt')
    save = save_gpt
    if 'folder' in model.args:
        from extras.pretrained import save
    folder = folder.rstrip('/')
    save(model, f'{folder}.tmp')                # a folder has its name only when it is whole
    os.rename(f'{folder}.tmp', folder)
    print(f"wrote {folder}")
