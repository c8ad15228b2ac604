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
from plumbing.configurator import configure
from plumbing.datasets import Dataset
from plumbing.networks import load_checkpoint

# ---- knobs, changed by --name=value; other words are for train_grpo.py ---------------------------
prompt = ''                 # your own prompt; _ is a blank, a causal network continues it
num_samples = 10            # held-out prompts to show


def open_run(path, more):
    """Return the task of a run; its networks, whose policy is that before GRPO; the policy after
    GRPO; and the dict of the run's checkpoint."""
    words = json.loads(Path(path, 'config.json').read_text())['words']
    configure(vars(grpo), [*words, '--device=auto', *more])     # the run may have had another one
    saved = load_checkpoint(f'{path}/ckpt.pt')
    torch_device = devices.init_device(grpo.device, grpo.dtype)
    networks, task = grpo.open_task(torch_device, saved['files'])       # those with which it began
    grpo.state.update(saved['state'][0])        # rewards may look at it
    after, _ = grpo.load_network(f'{path}/ckpt.pt', torch_device)
    return task, networks, after, saved


def main():
    ours = [word for word in sys.argv[1:] if word.startswith(('--prompt', '--num', '--help'))]
    configure(globals(), ours)
    path, *others = [word for word in sys.argv[1:] if word not in ours] or ['out-grpo']
    task, networks, after, saved = open_run(path, others)
    weights = ({'verify': 0.0} | grpo.rewards) if task.verify else grpo.rewards
    if prompt:                                  # the only record of a task: nobody scores it
        record, weights, length = {'prompt': prompt, 'answer': ''}, {}, task.length
        data = Dataset([record], [record], None, task.reply)
        task = grpo.Task(data, task.tok, 'answer', after)
        task.length = max(length, task.length)  # room for a completion
    devices.set_seed(0)                         # the records of an evaluation
    prompts = task.prompts('val', num_samples, grpo.blank_low, grpo.blank_high)
    for one in prompts.split(1):
        for label, policy, step in ('before', networks.policy, 0), ('after', after, saved['step']):
            devices.set_seed(grpo.seed)         # before and after GRPO draw the same numbers
            r = grpo.complete(policy, one, grpo.group_size)
            scores = grpo.score(r, networks, weights, step, 'val')
            report.print_group(grpo.samples_of(r, grpo.columns_of(r), scores), weights, label)


if __name__ == '__main__':
    main()
