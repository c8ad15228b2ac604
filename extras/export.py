"""The way out: a policy or generator as a folder that transformers loads.

    python extras/export.py out-causal my-policy            # a run, or a checkpoint file

Our GPT leaves as a Qwen3, a pretrained model as what it is."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
from common import fail

import torch

from data.dataset import SPECIALS
from model import load_gpt, norm

try:
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
except ImportError as e:
    fail(f"no export: {e}; pip install transformers")


@torch.no_grad()
def save_gpt(model, folder):
    """Writes our GPT as a Qwen3 whose norms are all ones. The gated network relu(gate x) * (up x),
    with gate = up, is our relu(up x)^2."""
    args = model.args
    T = args['block_size']
    C = args['n_embd']
    V = model.vocab_size
    ids = {'bos_token_id': model.bos_id, 'eos_token_id': model.tok.eos,
           'pad_token_id': model.pad_id}
    qwen = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=V + 3, hidden_size=C, intermediate_size=4 * C, num_hidden_layers=args['n_layer'],
        num_attention_heads=args['n_head'], num_key_value_heads=args['n_head'],
        head_dim=C // args['n_head'], hidden_act='relu', max_position_embeddings=T + 1,
        rope_parameters={'rope_type': 'default', 'rope_theta': 10000.0},
        rms_norm_eps=torch.finfo(torch.float32).eps, tie_word_embeddings=False, **ids))
    # The norm of the embedding has no weights, so it can be applied to the rows once.
    qwen.model.embed_tokens.weight.copy_(norm(model.embed.weight))
    qwen.lm_head.weight.zero_()[:V] = model.head.weight     # no output was learned for the specials
    for layer, block in zip(qwen.model.layers, model.blocks):
        own = layer.self_attn
        q, k, v = block.qkv.weight.split(C)
        mlp = layer.mlp
        for theirs, ours in (
                (own.q_proj, q), (own.k_proj, k), (own.v_proj, v), (own.o_proj, block.proj.weight),
                (mlp.gate_proj, block.up.weight), (mlp.up_proj, block.up.weight),
                (mlp.down_proj, block.down.weight)):
            theirs.weight.copy_(ours)
    qwen.generation_config.suppress_tokens = [V, V + 1, V + 2]
    qwen.generation_config.do_sample = True
    qwen.save_pretrained(folder)
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
