"""Look at a run: held-out prompts, or one of yours, before and after GRPO.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7'
    python sample.py out-grpo --num_samples=3 --temperature=0.5

The words of the run's command are in its config.json. More words change them. They name files that
are executed: read them first if somebody sent the run. The last lines are those of eval_prompts
prompts, as on the console of the run."""
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import train_grpo as grpo
from plumbing import devices, report
from plumbing.configurator import configure, must_exist

# ---- knobs, changed by --name=value; other words are for train_grpo.py ---------------------------
prompt = ''                 # your own prompt; _ is a blank, a causal network goes on behind it
num_samples = 10            # held-out prompts to show


def open_run(path, more=()):
    """Return the task of a run; its networks {'before': ..., 'after': ...}; and the dict of its
    checkpoint."""
    config = json.loads(Path(must_exist(f'{path}/config.json')).read_text())
    # It may have had another machine. Its networks are taken as they are.
    words = [*config['words'], '--device=auto', '--compile=False', '--resume=True', *more]
    print('train_grpo.py', *words, flush=True)
    _, data = grpo.read_words(words)
    networks, task = grpo.open_task(data)
    policy, saved = grpo.load_network(f'{path}/ckpt.pt', task.device)
    after = SimpleNamespace(**vars(networks) | {'policy': policy})
    return task, {'before': networks, 'after': after}, saved


def groups_of(task, networks, step, line):
    """Return groups of samples to print, the names of their scores, the line to beat (or None), and
    the numbers of an evaluation. Nothing is known of your own prompt."""
    if prompt:
        devices.set_seed(grpo.seed)
        r = grpo.complete(networks.policy, task.typed(prompt), grpo.group_size)
        return [report.samples_of(r, grpo.columns_of(r), {})], [], line, {}
    samples, scores, greedy = grpo.evaluate(networks, task, step, num_samples)
    line, numbers = report.against_line(scores, greedy, line, grpo.rewards)
    names = [name for name in scores if name not in ('tokens', 'reward')]
    return [samples[i:i + 4] for i in range(0, len(samples), 4)], names, line, numbers


if __name__ == '__main__':
    words = sys.argv[1:]
    ours = [x for x in words if x.startswith(('--prompt', '--num', '-h', '--help'))]
    others = [x for x in words if x not in ours]
    configure(globals(), ours)
    paths = [x for x in others if not x.startswith('--') and not x.endswith('.py')]
    path = paths[0] if paths else 'out-grpo'
    task, both, saved = open_run(path, [x for x in others if x != path])
    before, names, line, first = groups_of(task, both['before'], 0, None)
    grpo.state.update(saved['state'][0])        # rewards of the trained policy may look at it
    after, names, line, last = groups_of(task, both['after'], saved['step'], line)
    for pair in zip(before, after):
        for samples, label in zip(pair, both):
            report.print_group(samples, names, label)
    for label, numbers in zip(both, (first, last)):
        if numbers:
            print(f'{label:7}{report.shown_of(numbers)}')
