"""Look at a run: held-out prompts, or one of yours, before and after GRPO. Or look at a network.

    python sample.py out-grpo
    python sample.py out-grpo --prompt='1_+3_=__7'
    python sample.py out/generator_think-cups.pt

The words of the run's command are in its config.json. More words change them, such as
--temperature=0.5. They name files that are executed: read them first if somebody sent the run. The
last lines are those of eval_prompts prompts, as on the console of the run."""
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import train_grpo as grpo
from configurator import configure, must_exist
from run import load_checkpoint, shown_of
from show import print_group

# ---- knobs, changed by --name=value; other words are for train_grpo.py ---------------------------
prompt = ''                 # your own prompt; _ is a blank, a causal network goes on behind it
num_samples = 10            # held-out prompts to show


def words_of(path):
    """Return the words of the command of a run, a folder; or words that fit a network."""
    if Path(path).is_dir():
        config = json.loads(Path(must_exist(f'{path}/config.json')).read_text())
        assert 'words' in config, f"{path} is no folder of a run"
        # The run may have had another machine, and must not go on.
        return [*config['words'], '--device=auto', '--compile=False', '--resume=False']
    saved = load_checkpoint(must_exist(path, 'run or network'))
    assert 'dataset' in saved, f"{path} is a checkpoint of a run: expected its folder"
    is_causal = saved['args']['kind'] == 'causal'
    task = 'plugins/causal.py' if is_causal else f"--blank_kind={saved['blank_kind']}"
    return [task, f"--dataset={saved['dataset']}", f'--generator={path}', '--rewards={}',
            '--kl_beta=0']


def open_run(path, more=()):
    """Return the task of a run; its networks {'before': ..., 'after': ...}; and the dict of its
    checkpoint. A network has no 'after', and its dict is empty."""
    words = [*words_of(path), *more]
    print('train_grpo.py', *words, flush=True)
    _, data = grpo.read_words(words)
    networks, task = grpo.open_task(data)
    if not Path(path).is_dir():
        return task, {'before': networks}, {}
    policy, saved = grpo.load_network(f'{path}/ckpt.pt', task.device)
    after = SimpleNamespace(**vars(networks) | {'policy': policy})
    return task, {'before': networks, 'after': after}, saved


if __name__ == '__main__':
    words = sys.argv[1:]
    ours = [x for x in words if x.startswith(('--prompt', '--num', '-h', '--help'))]
    others = [x for x in words if x not in ours]
    configure(globals(), ours)
    path = 'out-grpo' if not others or others[0].startswith('--') else others.pop(0)
    task, both, saved = open_run(path, others)
    step, line = 0, None
    columns, last_lines = [], []
    for label, networks in both.items():
        if prompt:
            grpo.set_seed(grpo.seed)
            r = grpo.complete(networks.policy, task.typed(prompt), grpo.group_size)
            names = []
            groups = [grpo.samples_of(r, grpo.columns_of(r), {})]
        else:
            samples, scores, greedy = grpo.evaluate(networks, task, step, num_samples)
            names = [name for name in scores if name not in ('tokens', 'reward')]
            groups = [samples[i:i + 4] for i in range(0, len(samples), 4)]
            line, numbers = grpo.against_line(scores, greedy, line, grpo.rewards)
            last_lines.append(f'{label:7}{shown_of(numbers)}')
        columns.append([(group, names, label) for group in groups])
        # Rewards of the trained policy may look at these two.
        step = saved.get('step')
        grpo.state.update(*saved.get('state', ())[:1])
    for row in zip(*columns):                   # a prompt, before and after
        for group, names, label in row:
            print_group(group, names, label)
    for text in last_lines:
        print(text)
