"""Measure what a GPU gives, in a few minutes, and print the table of the manual.

    python -m extras.gpu
    python -m extras.gpu --device=cpu           # the same at toy sizes, to try this script"""
import statistics
import subprocess
import sys
import time

from extras.benchmark import open_job, our_step, seconds_of

# isort: split
import torch

IS_TOY = '--device=cpu' in sys.argv
DEVICE = '--device=cpu' if IS_TOY else '--device=cuda'
SIZES = ['--n_steps=90',         # as large as the default's
         '--n_layer=3 --n_head=4 --n_embd=64 --length=128 --batch_size=32',
         '--n_layer=6 --n_head=6 --n_embd=384 --length=128 --batch_size=32',
         '--n_layer=12 --n_head=12 --n_embd=768 --length=128 --batch_size=32']
TOY = ['--n_layer=2 --n_head=4 --n_embd=32 --length=8 --batch_size=4']


def ms_of(*words):
    """Return the median milliseconds of a step of train_grpo.py, without the first five."""
    job = open_job(*words, DEVICE)
    seconds = [seconds_of(time.time, our_step, *job, step) for step in range(8 if IS_TOY else 40)]
    return 1000 * statistics.median(seconds[5:])


def benchmark(*words):
    """Return what extras.benchmark prints, or the last line of its error: memory can be short."""
    words = [sys.executable, '-m', 'extras.benchmark', *words, DEVICE]
    result = subprocess.run(words, capture_output=True, text=True)
    return (result.stdout or result.stderr).strip().splitlines()[-1]


if __name__ == '__main__':
    if sys.argv[1:] not in ([], ['--device=cpu']):
        sys.exit(__doc__)
    if not IS_TOY and not torch.cuda.is_available():
        sys.exit("there is no GPU of NVIDIA; to try this script: --device=cpu")
    print('| | a step |\n| --- | --- |')
    for dtype in ('float32', 'bfloat16'):
        for name in ('config', 'guess', 'think'):
            ms = ms_of(f'config/grpo_{name}.py', f'--dtype={dtype}')
            print(f'| grpo_{name}, {dtype} | {ms:.1f} ms |', flush=True)
        for size in TOY if IS_TOY else SIZES:
            text = benchmark(*size.split(), f'--dtype={dtype}')
            print(f'| {dtype} | {text} |', flush=True)
