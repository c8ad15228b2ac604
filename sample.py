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
prompt = ''                 # your own prompt; _ is a blank, a causal network continues it
num_samples = 10            # held-out prompts to show


def open_run(path, more=()):
    """Return the task of a run; its networks, whose policy is that before GRPO; the policy after
    GRPO; and the dict of the run's checkpoint."""
    must_exist(path, 'run')
    config = json.loads(Path(must_exist(f'{path}/config.json')).read_text())
    must_exist(f'{path}/ckpt.pt', 'checkpoint')
    # The run may have had another machine. Its networks are taken as they are.
    words = [*config['words'], '--device=auto', '--compile=False', '--resume=True', *more]
    print('train_grpo.py', *words, flush=True)
    _, data = grpo.read_words(words)
    networks, task = grpo.open_task(data, refuse)
    after, saved = grpo.load_network(f'{path}/ckpt.pt', task.device)
    return task, networks, after, saved


def refuse(missing):
    """Make no network: it would be another one than that before GRPO."""
    raise AssertionError(f"{', '.join(missing)} is not there, with which the run began")


def show(prompts, networks, policy, step, label):
    """Print the completions of one prompt by a policy, with their scores. A prompt of yours has
    none: nobody knows what is right."""
    names = {}
    if not prompt:
        names = {'verify': 0.0} | grpo.rewards if prompts.task.verify else grpo.rewards
    devices.set_seed(grpo.seed)                 # before and after GRPO draw the same numbers
    r = grpo.complete(policy, prompts, grpo.group_size)
    scores = grpo.score(r, networks, names, step, 'val')
    report.print_group(report.samples_of(r, grpo.columns_of(r), scores), names, label)


def main():
    paths, ours, others = [], [], []
    for word in sys.argv[1:]:
        if word.startswith(('--prompt', '--num', '-h', '--help')):
            ours.append(word)
        elif word.startswith('--') or word.endswith('.py'):
            others.append(word)
        else:
            paths.append(word)
    configure(globals(), ours)
    assert len(paths) < 2, f"expected one run, not {' '.join(paths)}"
    task, networks, after, saved = open_run(''.join(paths) or 'out-grpo', others)
    grpo.state.update(saved['state'][0])        # rewards may look at it
    devices.set_seed(0)                         # the records of an evaluation
    if prompt:
        prompts = task.prompt_of_user(prompt)
    else:
        prompts = task.prompts('val', num_samples, grpo.blank_low, grpo.blank_high)
    for one in prompts.split(1):
        show(one, networks, networks.policy, 0, 'before')
        show(one, networks, after, saved['step'], 'after')


if __name__ == '__main__':
    main()
