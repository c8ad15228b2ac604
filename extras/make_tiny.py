"""A small model in the format of transformers, made from pairs in about a minute: to try
extras/pretrained.py without a download.

    python extras/make_tiny.py --input=mine.jsonl --mode=causal --out=out/tiny"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import configure, one_of

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from data.dataset import blanks, draws
from data.pairs.prepare import read_pairs
from extras.pretrained import Pretrained, save

input = 'mine.jsonl'        # pairs, as data/pairs/prepare.py reads them
mode = 'causal'             # 'causal': a small Qwen3 | 'fill': a small ModernBERT
out = 'out/tiny'            # folder to write
template = False            # True: the prompts are said in a chat
n_symbols = 500             # size of the vocabulary, at most; bytes alone are 260
n_embd = 128                # channels
batch_size = 64             # rows per step
max_iters = 400             # optimizer steps
learning_rate = 3e-3        # of AdamW, after 20 steps of warm-up
seed = 1                    # of weights, rows and blanks
CHAT = ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def write_model(folder, texts, causal, n_symbols, n_embd):
    """A model that has learned nothing: a Qwen3 with grouped heads, tied weights and no BOS, or a
    ModernBERT; and a tokenizer of pairs of bytes, with a template for chats."""
    names = {'pad_token': '<|pad|>', 'eos_token': '<|end|>'}
    if not causal:
        names = {'pad_token': '[PAD]', 'cls_token': '[CLS]', 'sep_token': '[SEP]',
                 'mask_token': '[MASK]'}
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=n_symbols, special_tokens=[*names.values(), '<|user|>', '<|assistant|>'],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, model_max_length=512, **names)
    tok.chat_template = CHAT
    tok.save_pretrained(folder)

    sizes = {'vocab_size': len(tok), 'hidden_size': n_embd, 'intermediate_size': 3 * n_embd,
             'num_hidden_layers': 3, 'num_attention_heads': 4, 'initializer_range': n_embd ** -0.5}
    if causal:
        network = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            num_key_value_heads=2, head_dim=n_embd // 4, tie_word_embeddings=True, **sizes))
    else:
        network = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(
            pad_token_id=tok.pad_token_id, **sizes))
    network.save_pretrained(folder)


if __name__ == "__main__":
    configure(globals())
    one_of(('causal', 'fill'), mode=mode)
    torch.manual_seed(seed)
    pairs = read_pairs(input)
    texts = [prompt + answer for prompt, answer in pairs]
    write_model(out, texts, mode == 'causal', n_symbols, n_embd)
    model = Pretrained(out, 256, mode == 'causal')
    tok = model.tok
    rows = []
    for prompt, answer in pairs:
        if template:
            prompt = tok.apply_template(prompt)
        rows.append(tok.encode(prompt) + tok.encode(answer) + [tok.eos])
    longest = max(map(len, rows))
    rows = torch.tensor([row + [tok.pad] * (longest - len(row)) for row in rows])   # (rows, T)

    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.95))
    for step in range(max_iters):
        rng = draws(seed, 'tiny', step)
        tokens = rows[rng.integers(len(rows), size=batch_size)]                     # (N, T)
        where = tokens != tok.pad
        where[:, 0] = False                     # without a BOS nothing says the first
        if mode == 'fill':
            where = blanks(tokens, tok, rng, 'random')
        loss = F.cross_entropy(model(tokens, where), tokens[where])
        loss.backward()
        optimizer.param_groups[0]['lr'] = learning_rate * min(1.0, (step + 1) / 20)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step:4} | loss {loss.item():.3f}", flush=True)
    save(model, out)
    print(f"wrote {out}: V = {tok.base}, rows of up to {longest} ids")
