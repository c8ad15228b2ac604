"""The folder of a run: config.json (the knobs, and the words of the command), log.jsonl (the
numbers of each step and evaluation), samples.jsonl (completions), and ckpt.pt. Only the first of
several ranks writes."""
import json
import math
import os
import signal
import sys
from pathlib import Path

import filelock
import torch
import torch.distributed as dist

from plumbing.devices import N_RANKS, RANK, wait_for_ranks
from plumbing.networks import load_checkpoint, save_network
from plumbing.report import print_group, shown_of

# What an evaluation depends on. If one of these knobs changes, another line to beat begins. Plugins
# add their knobs.
MEASURED = ('dataset', 'blank_kind', 'blank_low', 'blank_high', 'rewards', 'judge', 'temperature',
            'top_k', 'top_p', 'eval_prompts')
PLAIN = {bool, int, float, str, type(None), torch.Tensor}       # types of the leaves of `state`


def is_plain(x):
    """Return whether load_checkpoint() surely reads x again."""
    if type(x) in (list, tuple, dict):
        return all(map(is_plain, [*x, *x.values()] if type(x) is dict else x))
    return type(x) in PLAIN


class RunFolder:
    """The folder of a run. A new run moves an older one that has a checkpoint out of its way. A
    resumed run takes the steps after its checkpoint again, and cuts them from its logs."""

    def __init__(self, path, config):
        self.path = Path(path).resolve()        # a reward may change the folder of the process
        self.config = config
        # The console shows the parts of several rewards, because their sum hides them.
        self.parts = config['rewards'] if len(config['rewards']) > 1 else {}
        self.saved = {}                         # the checkpoint of a resumed run
        self.wandb = None
        if RANK == 0:
            is_run = (self.path / 'config.json').exists()       # the first file of a run
            assert is_run or not any(self.path.glob('*')), f"{self.path} is no folder of a run"
            for name in ('generator', 'judge', 'reference'):
                assert self.path not in Path(config[name]).resolve().parents and (
                    self.path != Path(config[name]).resolve()), (
                    f"{name} = {config[name]} is in out_dir: choose another out_dir")
            self.lock = filelock.FileLock(f'{self.path}.lock', timeout=0)   # ends with the process
            try:
                self.lock.acquire()
            except filelock.Timeout:
                sys.exit(f"another run is writing to {path}: choose another --out_dir")
        if config['resume']:
            if (self.path / 'ckpt.pt').exists():
                self.saved = load_checkpoint(self.path / 'ckpt.pt')
            else:
                self.say(f'there is no {path}/ckpt.pt, so the run begins at its first step')
        states = self.saved.get('state', [{}])
        self.state = states[RANK % len(states)]

    def say(self, text):
        if RANK == 0 and text:
            print(text, flush=True)

    def begin(self, policy, optimizers, measured):
        """Load the weights and moments of a resumed run, and begin the logs. Return its step, and
        its line to beat, or None if one of the measured knobs has changed."""
        step, line = 0, None
        if self.saved:
            old, new = self.saved.get('config', self.config), self.config
            changed = {name: f'{name}: {new.get(name)}, not {old.get(name)}'
                       for name in sorted(old | new) if new.get(name) != old.get(name)}
            changed.pop('resume', None)
            try:
                step, line = self.saved['step'], self.saved['line']
                assert self.saved['vocabulary'] == policy.tok.vocabulary
                assert self.saved['args'].get('kind') == policy.args.get('kind')
                policy.load_state_dict(self.saved['model'])
                for optimizer, moments in zip(optimizers, self.saved['optimizers'], strict=True):
                    optimizer.load_state_dict(moments)
            except (AssertionError, KeyError, RuntimeError, ValueError):
                sys.exit(f"{self.path}/ckpt.pt has another network or optimizer; other knobs: "
                         f"{'; '.join(changed.values()) or 'none'}")
            assert step <= new['max_iters'], f"{step} steps are taken: expected a larger max_iters"
            for sentence in changed.values():
                self.say(f'resumed with another {sentence}')
            if changed.keys() & {*measured} or changed.keys() - new.keys():     # of a lost plugin
                self.say('so a new line to beat begins at the next evaluation')
                line = None
        if RANK == 0:                           # last: a run that is refused changes no log
            self.begin_logs(step)
        return step, line

    def begin_logs(self, step):
        """Move an older run out of the way. Write the knobs. Cut the logs of a resumed run."""
        path, config = self.path, self.config
        if (path / 'ckpt.pt').exists() and not self.saved:
            number = 1
            while Path(f'{path}-{number}').exists():
                number += 1
            older = path.rename(f'{path}-{number}')
            print(f'{path.name} held another run, which is now in {older.name}')
        path.mkdir(parents=True, exist_ok=True)
        (path / 'config.tmp').write_text(json.dumps(config | {'words': sys.argv[1:]}, indent=1))
        os.replace(path / 'config.tmp', path / 'config.json')
        for temporary in path.glob('ckpt.pt.*.tmp'):        # of a run that was killed
            temporary.unlink()
        for name in ('samples.jsonl', 'log.jsonl'):
            with open(path / name, 'ab+') as file:
                file.seek(0)                    # the last line may be half a line
                kept = [x for x in file if x.endswith(b'\n') and json.loads(x)['step'] < step]
                file.truncate(len(b''.join(kept)))
        if config['wandb_project']:
            import wandb
            self.wandb = wandb.init(project=config['wandb_project'], name=path.name,
                                    id=self.saved.get('wandb'), resume='allow', config=config)
            self.wandb.define_metric('*', step_metric='step')

    def save(self, policy, optimizers, step, line, state):
        """Write the checkpoint of a step. Each rank has a state of its own."""
        for name, x in state.items():
            assert is_plain(x), (f"state[{name!r}] is {x!r:.80}: expected numbers, texts, tensors, "
                                 "and plain lists, tuples and dicts of them")
        states = [state] * N_RANKS
        if N_RANKS > 1:
            dist.all_gather_object(states, state)
        if RANK == 0:
            save_network(self.path / 'ckpt.pt', policy, config=self.config, step=step, line=line,
                         state=states, wandb=self.wandb and self.wandb.id,
                         optimizers=[optimizer.state_dict() for optimizer in optimizers])
        wait_for_ranks()                        # none goes on before the checkpoint is there

    def append(self, name, step, records):
        with open(self.path / name, 'a') as file:
            for record in records:
                print(json.dumps({'step': step} | record), file=file)

    def log(self, step, numbers, to_console=True):
        """Write the numbers of a step or of an evaluation."""
        assert all(map(math.isfinite, numbers.values())), f"step {step}: not finite: {numbers}"
        if RANK == 0:
            self.append('log.jsonl', step, [numbers])
        if self.wandb:
            self.wandb.log({'step': step} | numbers)
        if to_console:
            self.say(f'step {step:5}{shown_of(numbers, self.parts)}')

    def show(self, step, samples, to_console=False):
        """Write samples, and print them as one group."""
        if RANK == 0:
            self.append('samples.jsonl', step, samples)
            if to_console and samples:
                print_group(samples, ['reward', *self.parts, 'advantage'])


class Stop:
    """is_asked says whether Ctrl-C or SIGTERM has come. The first one lets the step end, and then
    the run saves itself. The second one ends the run."""
    is_asked = False

    def __init__(self):
        self.pid = os.getpid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)

    def __call__(self, number, frame):
        if os.getpid() != self.pid:             # a process that a reward has forked, and ends
            os._exit(1)
        if self.is_asked:
            raise KeyboardInterrupt('stopped at once')
        self.is_asked = True
        # print() could be what was interrupted.
        os.write(2, b'\nstopping after this step; the same command with --resume=True goes on; '
                    b'once more to stop at once\n')
