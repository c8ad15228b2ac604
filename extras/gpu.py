"""Measure what a GPU gives, in a few minutes, and print the table of the manual.

    python -m extras.gpu
    python -m extras.gpu --device=cpu           # the same at toy sizes, to try this script"""
import json
import os
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
