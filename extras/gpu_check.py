"""Try a machine before a long run: some steps of several experiments, in float32 and bfloat16, with
and without compile, on one GPU and on all. A run that fails is a row that says so.

    python -m extras.gpu_check | tee table.md
    python -m extras.gpu_check --only=smoke,default --steps=4

The first row of an experiment is the CPU in float32. Its first reward is what all others should
show, up to rounding: they have the same prompts and random numbers. The others are on the GPU if
there is one. Networks that are missing are made first. GB: of the GPU, or of the process on a CPU.
recompiled: how often torch.compile began anew. The last run of an experiment is in out-check.
Nobody has run this on a GPU."""
import itertools
import os
import resource
import subprocess
import sys

import torch

import train_grpo as grpo
from extras.curves import read_log
from run.command import configure
from run.machine import print0

# ---- knobs, changed by --name=value --------------------------------------------------------------
steps = 6
only = 'smoke,default,order,passes,problems'        # some of these
WORDS = {
    'smoke': 'config/grpo_smoke.py',
    'default': 'config/grpo_config.py',
    'order': 'config/grpo_order.py',
    'passes': 'config/grpo_passes.py',
    'problems': 'config/grpo_problems.py --batch_size=16 --group_size=8',
}
FLAGS = ['--dtype=float32 --device=cpu', '--dtype=float32', '--dtype=float32 --compile=True',
         '--dtype=bfloat16', '--dtype=bfloat16 --compile=True']
N_GPUS = max(1, torch.cuda.device_count())


def train(words):
    """Run train_grpo.py as one of perhaps several ranks, and print the cells of its row."""
    sys.argv[1:] = words
    grpo.main()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if torch.cuda.is_initialized():
        peak = torch.cuda.max_memory_allocated()
    lines = [line for line in read_log(grpo.out_dir) if 'ms' in line]
    ms = sorted(line['ms'] for line in lines)[len(lines) // 2]
    gap = max(line['sampler_gap'] for line in lines)
    print0(f"{ms:.0f} | {peak / 1e9:.2f} | {lines[0]['mean_reward']:.4f} | {gap:.1e}")


def row(name, flags, ranks):
    """Make a run in processes of its own. Return its row of the table."""
    start = f'torch.distributed.run --standalone --nproc_per_node={ranks} -m ' * (ranks > 1)
    code, text = subprocess.getstatusoutput(
        f'TORCH_LOGS=recompiles {sys.executable} -m {start}extras.gpu_check train {WORDS[name]} '
        f'--max_iters={steps} --eval_interval={steps} --eval_prompts=8 --log_interval=1 '
        f'--warmup_iters=1 --gradient_accumulation_steps={N_GPUS} --out_dir=out-check/{name} '
        f'{flags}')
    last = text.strip().split('\n')[-1]
    if code:
        last = 'failed: ' + last.replace('|', '/')
    return f"| {name} {flags} | {ranks} | {text.count('Recompiling function')} | {last} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ['train']:
        train(sys.argv[2:])
        sys.exit()
    configure(globals(), sys.argv[1:])
    names = only.split(',')
    assert set(names) <= WORDS.keys(), f"--only={only}: expected some of {list(WORDS)}"
    print('| run | ranks | recompiled | ms a step | GB | first reward | sampler gap |')
    print('| --- ' * 7 + '|')
    variants = [(FLAGS[0], 1), *itertools.product(FLAGS[1:], sorted({1, N_GPUS}))]
    for name, variant in itertools.product(names, variants):
        if name != 'problems' or os.path.exists('out/smollm2'):
            print(row(name, *variant), flush=True)
