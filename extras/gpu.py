"""Measure what a GPU gives, in a few minutes, and print the table of the manual.

    python -m extras.gpu                        # (the last rows need transformers and trl)
    python -m extras.gpu --device=cpu           # the same at toy sizes, to try this script"""
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

IS_TOY = '--device=cpu' in sys.argv
DEVICE = '--device=cpu' if IS_TOY else '--device=cuda'


def output_of(*words):
    """Run a script of Python. Return what it printed, or the last line of its error."""
    result = subprocess.run([sys.executable, *words], capture_output=True, text=True,
                            env=os.environ | {'PYTHONPATH': '.'})
    return result.stdout if result.returncode == 0 else result.stderr.strip().split('\n')[-1]


def ms_of(*words):
    """Return the median milliseconds of a step of train_grpo.py, without the first five."""
    with tempfile.TemporaryDirectory() as folder:
        text = output_of('train_grpo.py', *words, DEVICE, f'--max_iters={8 if IS_TOY else 40}',
                         '--eval_interval=99999', '--eval_prompts=8', f'--out_dir={folder}/run')
        if not Path(folder, 'run/log.jsonl').exists():
            return text
        lines = map(json.loads, open(f'{folder}/run/log.jsonl'))
        ms = [line['ms'] for line in lines if 'ms' in line]
        return f'{statistics.median(ms[5:]):.1f} ms'


def make_llama(folder):
    """Write a Llama of SmolLM2-135M's shape with random weights, and prompts of 64 words."""
    import tokenizers, transformers
    V, layers, width = (200, 2, 32) if IS_TOY else (49152, 30, 576)
    words = {f'w{i}': i for i in range(V)}
    tok = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token='w0'))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token='w1', eos_token='w2',
                                         model_max_length=1024).save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=layers,
        num_attention_heads=width // 16 if IS_TOY else 9, num_key_value_heads=1 if IS_TOY else 3,
        max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    rng = random.Random(0)
    with open(f'{folder}/prompts.jsonl', 'w') as file:
        for _ in range(200):
            prompt = ' '.join(f'w{rng.randrange(3, V)}' for _ in range(64))
            print(json.dumps({'prompt': prompt}), file=file)
    Path(folder, 'variety.py').write_text(
        "rewards = {'variety': 1.0}\n\ndef variety(completions):\n"
        "    return [len(set(text.split())) / 1000 + text.count('7') for text in completions]\n")
    return ['plugins/causal.py', 'plugins/hf.py', f'{folder}/variety.py', f'--generator={folder}',
            f'--dataset={folder}/prompts.jsonl', '--kl_beta=0', '--entropy_coef=0',
            '--warmup_iters=1', '--learning_rate=1e-5', '--min_lr=1e-6', DEVICE,
            f'--out_dir={folder}/run']


def beside_trl(folder, B, k, n):
    """Return milliseconds of a step of ours and of TRL's, of B x k completions of n tokens."""
    words = [*make_llama(folder), f'--batch_size={B}', f'--group_size={k}', f'--max_new_tokens={n}',
             '--max_iters=9', '--log_interval=1', '--eval_interval=99999', '--eval_prompts=2']
    Path(folder, 'theirs.py').write_text(output_of('-m', 'extras.trl', *words))
    theirs = re.findall(r"'step_time': '?([\d.e+-]+)", output_of(f'{folder}/theirs.py'))
    ours = ms_of(*words)
    if not theirs:
        return f'{ours}; TRL did not run'
    return f'{ours}; TRL {1000 * statistics.median(map(float, theirs[3:])):.1f} ms'


if __name__ == '__main__':
    if sys.argv[1:] not in ([], ['--device=cpu']):
        sys.exit(__doc__)
    if not IS_TOY and not torch.cuda.is_available():
        sys.exit("there is no GPU of NVIDIA; to try this script: --device=cpu")
    print('| | a step |\n| --- | --- |')
    for name in ('config', 'guess', 'think'):
        for dtype in ('float32', 'bfloat16'):
            ms = ms_of(f'config/grpo_{name}.py', f'--dtype={dtype}')
            print(f'| grpo_{name}, {dtype} | {ms} |', flush=True)
    sizes = [(2, 32, 8, 4)] if IS_TOY else [(3, 64, 9, 64), (3, 64, 128, 32), (6, 384, 128, 32),
                                            (12, 768, 128, 32)]
    for layers, width, length, B in sizes:
        for dtype in ('float32', 'bfloat16'):
            text = output_of('-m', 'extras.benchmark', f'--n_layer={layers}', f'--n_embd={width}',
                             f'--n_head={max(4, width // 64)}', f'--length={length}',
                             f'--batch_size={B}', f'--dtype={dtype}', DEVICE)
            print(f'| {dtype} | {text.strip()} |', flush=True)
    for B, k, n in [(2, 2, 8)] if IS_TOY else [(8, 8, 64), (16, 16, 192)]:
        with tempfile.TemporaryDirectory() as folder:
            ms = beside_trl(folder, B, k, n)
            print(f'| a Llama, {B} x {k} completions of {n} tokens | {ms} |', flush=True)
