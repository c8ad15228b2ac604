"""Look at a run: held-out prompts, or one of yours, before and after GRPO. Or look at a network
alone.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7'
    python sample.py out/generator_think-cups.pt

The words of the run's command are in its config.json; more words change them, such as
--temperature=0.5. They name files that are executed: read them first if somebody sent the run. The
last lines are of all held-out prompts, as on the console of the run."""
import json
import sys
from pathlib import Path

import torch

import train_grpo as grpo
from configurator import configure
from run import samples_of, show_group

# ---- knobs, changed by --name=value; other words are for train_grpo.py ---------------------------
prompt = ''                 # your own prompt; _ is a blank, a causal network goes on behind it
num_samples = 10            # held-out prompts to show

CHOICES = {}


def words_of(path):
    """Return the words of the command of a run, a folder; or words that fit a network alone."""
    if Path(path).is_dir():
        words = json.loads(Path(path, 'config.json').read_text())['words']
        # (the run may have had another machine, and is not to go on here)
        others = ('--device', '--compile', '--resume')
        return [word for word in words if not word.startswith(others)]
    saved = torch.load(path, map_location='cpu', weights_only=True)
    plugins = ['plugins/causal.py'] if saved['args']['causal'] else []
    return plugins + [f'--{name}={saved[name]}' for name in ('dataset', 'blank_kind')] + [
        f'--generator={path}', '--rewards={}', '--kl_beta=0']


def open_run(path, more=()):
    """Return the task of a run, and its networks {'before': ..., 'after': ...}, each with what
    scores need; of a network alone there is no 'after'."""
    words = [*words_of(path), *more]
    print('train_grpo.py', *words, flush=True)
    _, networks, task = grpo.set_up(words)
    both = {'before': networks}
    if Path(path).is_dir():
        policy, _, _ = grpo.load_network(f'{path}/ckpt.pt', networks.policy.device)
        both['after'] = grpo.SimpleNamespace(**vars(networks) | {'policy': policy})
    return task, both


if __name__ == '__main__':
    ours = [word for word in sys.argv[1:]
            if word.startswith(('--prompt=', '--num_samples=', '--help'))]
    configure(globals(), ours)
    path, *more = [word for word in sys.argv[1:] if word not in ours] or ['out-grpo']
    assert Path(path).exists(), f"there is no run or network {path}"
    task, both = open_run(path, more)
    line, samples, lines = {}, {}, []
    for label, networks in both.items():
        names = []
        if prompt:
            prompts = task.typed(prompt).to(networks.policy.device)
            torch.manual_seed(grpo.seed)
            r, scores = grpo.complete(networks.policy, prompts, grpo.group_size), {}
        else:
            r, scores, greedy = grpo.evaluate(networks, task)
            names = [name for name in scores if name not in ('tokens', 'reward')]
            line, numbers = grpo.against_line(scores, greedy, line)
            lines.append(f'{label:8}' + ' '.join([f'| {name} {x:.3f}' for name, x in numbers.items()
                                                  if '/' not in name]))
        for b in range(min(num_samples, len(r.prompts))):
            samples[b, label] = samples_of(r, grpo.columns_of(r), scores, [b])
    for b, label in sorted(samples, key=lambda key: key[0]):
        show_group(label, samples[b, label], names)
    print(*lines, sep='\n')
