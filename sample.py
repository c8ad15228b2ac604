"""Look at a run: held-out prompts, or one of yours, before and after GRPO.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7'
    python sample.py out-grpo --num_samples=3 --temperature=0.5

The words of the run's command are in its config.json. More words change them. They name files that
are executed: read them first if somebody sent the run."""
import inspect
import sys
from pathlib import Path

import train_grpo as grpo
from plumbing import devices, report
from plumbing.configurator import configure
from plumbing.datasets import Dataset
from plumbing.networks import load_checkpoint
from plumbing.process import expect, say
from plumbing.run import open_task
from plumbing.run_folder import config_of, sum_of
from tasks import BLANK

# ---- knobs, changed by --name=value; other words are for train_grpo.py ---------------------------
prompt = ''                 # your own prompt; _ is a blank, a causal network continues it
num_samples = 10            # held-out prompts to show


def open_run(path, more):
    """Return the task of a run; its networks, whose policy is the one before GRPO; the policy after
    GRPO; and the dict of the run's checkpoint."""
    runs = [str(x.parent) for x in sorted(Path().glob('*/ckpt.pt'))]
    expect(Path(path, 'ckpt.pt').is_file(), f"{path} is no run that has saved itself. There are: "
           f"{', '.join(runs) or 'none'}")
    words = config_of(path)['words']
    for word in words:
        expect(word.startswith('--') or Path(word).is_file(), f"{path} began with {word}, which is "
               "not there any more")
    more = [x for x in more if x.startswith('--') or x not in words]    # the run has it already
    configure(vars(grpo), [*words, '--device=auto', *more])     # the run may have had another one
    saved = load_checkpoint(f'{path}/ckpt.pt')
    is_recipe = '.py' in grpo.generator         # a checkpoint is opened instead of the generator
    expect('files' in saved, f"{path}/ckpt.pt is a network, and no checkpoint of a run")
    for file, old in saved['sums'].items():
        if sum_of(file) not in (0, old):
            say(f"{file} is another file now")
    expect(grpo.generator in saved['files'] or not is_recipe, f"{grpo.generator} is not the "
           f"generator of {path}, which began with {[*saved['files']]}: leave it out")
    device = devices.init_device(grpo.device, grpo.dtype)
    networks, task = open_task(vars(grpo), device, saved['files'])      # those with which it began
    grpo.state.update(saved['state'][0])        # rewards may look at it
    after, _ = grpo.load_network(f'{path}/ckpt.pt', device)
    devices.set_precision(after, grpo.dtype)
    return task, networks, after, saved


def task_of(text, task, policy):
    """Return a Task whose only record is a prompt of yours, and the rewards that can score it:
    verify(), if it looks at nothing but texts."""
    columns = ('prompt', 'text', 'completion', 'sampled', 'ended')
    verify = task.verify
    if verify and not {*inspect.signature(verify).parameters} <= {*columns}:
        verify = None
    asked = {*inspect.signature(task.reply).parameters} - {*columns} if task.reply else ()
    if asked:
        say(f"reply() asks for {[*asked]}, which a typed prompt does not have: defaults count")
    record = {'prompt': text, 'answer': ''}
    mine = grpo.Task(Dataset([record], [record], verify, task.reply), task.tok, 'answer', policy)
    mine.length = max(task.length, mine.length)         # room for a completion
    return mine, {'verify': 0.0} if verify else {}


def main():
    ours = [word for word in sys.argv[1:] if word.startswith(('--prompt', '--num', '--help', '-h'))]
    configure(globals(), ours)
    expect(sum(word.startswith('--prompt=') for word in ours) < 2, "one --prompt at a time")
    path, *others = [word for word in sys.argv[1:] if word not in ours] or ['out-grpo']
    spare = [x for x in others if x.startswith(('--out_dir=', '--resume='))]
    expect(not spare, f"{spare}: the run is the first word, {path}")
    expect(not path.startswith('-'), f"{path}: expected the folder of a run first, such as "
           "python sample.py out-grpo")
    for word in others:
        expect(not Path(word).is_dir(), f"{word}: one run at a time, and {path} is the first")
        expect(not word.startswith('-') or word.startswith('--'), f"{word}: expected --name=value, "
               "such as --num_samples=3")
        is_known = word.startswith('-') or word.endswith('.py') or word.split('=')[0] in vars(grpo)
        expect(is_known, f"{word}: your own prompt needs the name of its knob, --prompt='{word}'")
    task, networks, after, saved = open_run(path, others)
    rewards = {'verify': 0.0} | grpo.rewards if task.verify else grpo.rewards
    if any(word.startswith('--prompt=') for word in ours):
        expect(not any(word.startswith('--num_samples=') for word in ours), "--num_samples counts "
               "held-out prompts. For more completions of a prompt: --group_size=20")
        is_filled = task.kind == 'fill' and task.blank_kind == 'random'
        expect(BLANK in prompt or not is_filled, f"--prompt={prompt}: this policy fills blanks, so "
               "write _ for each")
        task, rewards = task_of(prompt, task, after)
    devices.set_seed(0)                         # the records of an evaluation
    prompts = task.prompts('val', num_samples, grpo.blank_low, grpo.blank_high)
    for one in prompts.split(1):
        for label, policy, step in ('before', networks.policy, 0), ('after', after, saved['step']):
            devices.set_seed(grpo.seed)         # before and after GRPO draw the same numbers
            rollout = grpo.complete(policy, one, grpo.group_size)
            scores = grpo.score(rollout, networks, rewards, step, 'val')
            report.print_group(grpo.samples_of(rollout, scores), rewards, label)


if __name__ == '__main__':
    main()
