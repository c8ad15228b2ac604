"""Look at a run: held-out prompts, or one of yours, before and after GRPO.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7'
    python sample.py out-grpo --num_samples=3 --temperature=0.5

The words of the run's command are in its config.json. More words change them. They name files that
are executed: read them first if somebody sent the run."""
import json
import sys
from pathlib import Path

import train_grpo as grpo
from plumbing import devices, report
from plumbing.configurator import configure, must_exist

# ---- knobs, changed by --name=value; other words are for train_grpo.py ---------------------------
prompt = ''                 # your own prompt; _ is a blank, a causal network goes on behind it
num_samples = 10            # held-out prompts to show


def open_run(path, more=()):
    """Return the task of a run, its networks, whose policy is the one before GRPO, the policy
    after GRPO, and the dict of its checkpoint."""
    config = json.loads(Path(must_exist(f'{path}/config.json')).read_text())
    # The run may have had another machine. Its networks are taken as they are.
    words = [*config['words'], '--device=auto', '--compile=False', '--resume=True', *more]
    print('train_grpo.py', *words, flush=True)
    _, data = grpo.read_words(words)
    networks, task = grpo.open_task(data)
    after, saved = grpo.load_network(f'{path}/ckpt.pt', task.device)
    return task, networks, after, saved


def show(prompts, task, networks, policy, step, label):
    """Print the completions of a prompt by a policy, and their scores: none of your own prompt, of
    which nothing is known."""
    names = {} if prompt else {'verify': 0.0} | grpo.rewards if task.verify else grpo.rewards
    devices.set_seed(grpo.seed)                 # before and after GRPO draw the same numbers
    r = grpo.complete(policy, prompts, grpo.group_size)
    scores = grpo.score(r, networks, names, step, 'val')
    report.print_group(report.samples_of(r, grpo.columns_of(r), scores), names, label)


if __name__ == '__main__':
    words = sys.argv[1:]
    ours = [x for x in words if x.startswith(('--prompt', '--num', '-h', '--help'))]
    configure(globals(), ours)
    paths = [x for x in words if not x.startswith('--') and not x.endswith('.py')]
    path = paths[0] if paths else 'out-grpo'
    task, networks, after, saved = open_run(path, [x for x in words if x not in [path, *ours]])
    grpo.state.update(saved['state'][0])        # rewards may look at it
    devices.set_seed(0)                         # the prompts of an evaluation
    prompts = task.prompts('val', num_samples, grpo.blank_low, grpo.blank_high)
    for one in (task.prompt_of_user(prompt) if prompt else prompts).split(1):
        show(one, task, networks, networks.policy, 0, 'before')
        show(one, task, networks, after, saved['step'], 'after')
