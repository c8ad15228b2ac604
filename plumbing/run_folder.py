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

from plumbing.configurator import say
from plumbing.devices import N_RANKS, RANK, wait_for_ranks
from plumbing.networks import file_of, load_checkpoint, save_network
from plumbing.report import console_text, print_group

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
    """The folder of a run. A new run moves an older one out of its way. A resumed run takes the
    steps after its checkpoint again, and cuts them from its logs. Before claim() nothing is moved,
    and before begin() only the lock is written."""

    def __init__(self, path, config):
        self.path = Path(path).resolve()        # a reward may change the folder of the process
        self.config = config
        # The console shows the parts of several rewards, because their sum hides them.
        self.parts = config['rewards'] if len(config['rewards']) > 1 else {}
        self.saved = {}                         # the checkpoint of a resumed run
        self.wandb = None
        if RANK == 0:
            self.refuse_what_is_no_run(path)
        if config['resume']:
            if (self.path / 'ckpt.pt').exists():
                self.saved = load_checkpoint(self.path / 'ckpt.pt')
            else:
                say(f'there is no {path}/ckpt.pt, so the run begins at its first step')
        states = self.saved.get('state', [{}])
        self.state = states[RANK % len(states)]         # there may be more ranks than before

    def refuse_what_is_no_run(self, path):
        """Refuse a folder that this run would spoil, and one to which another run is writing."""
        is_run = (self.path / 'config.json').exists()           # the first file of a run
        assert is_run or not any(self.path.glob('*')), f"{self.path} is no folder of a run"
        for name in ('generator', 'judge', 'reference', 'dataset'):
            file = Path(file_of(self.config[name], self.config['dataset'])).resolve()
            assert self.path not in (file, *file.parents), (
                f"{name} = {self.config[name]} is in out_dir: choose another out_dir")
        if self.config['wandb_project']:
            refuse_wandb_without_key()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        open(f'{self.path}.lock', 'a').close()  # if this cannot be, the system says why
        self.lock = filelock.FileLock(f'{self.path}.lock', timeout=0)       # ends with the process
        try:
            self.lock.acquire()
        except filelock.Timeout:
            raise AssertionError(
                f"another run is writing to {path}: choose another --out_dir") from None

    def claim(self, missing=()):
        """Move an older run out of the way. From here on --resume=True begins this run. A resumed
        run goes on with the networks that it had: those that are missing would become others."""
        path = self.path
        assert not self.saved, (
            f"{', '.join(missing)} is not there, and a resumed run makes no network: expected the "
            "old knobs and files, or another out_dir")
        has_run = any((path / name).exists() for name in ('ckpt.pt', 'log.jsonl'))
        if RANK == 0 and has_run:
            number = 1
            while Path(f'{path}-{number}').exists():
                number += 1
            older = path.rename(f'{path}-{number}')
            say(f'{path.name} held another run, which is now in {older.name}')

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
                assert self.saved['args'].get('kind', policy.kind) == policy.kind
                policy.load_state_dict(self.saved['model'])
                for optimizer, moments in zip(optimizers, self.saved['optimizers'], strict=True):
                    optimizer.load_state_dict(moments)
            except (AssertionError, KeyError, RuntimeError, ValueError):
                raise AssertionError(
                    f"{self.path}/ckpt.pt has another network or optimizer: choose another out_dir "
                    f"or the old knobs ({'; '.join(changed.values()) or 'none differs'})") from None
            assert step <= new['max_iters'], f"{step} steps are taken: expected a larger max_iters"
            for sentence in changed.values():
                say(f'resumed with another {sentence}')
            if changed.keys() & {*measured} or changed.keys() - new.keys():     # of a lost plugin
                say('so a new line to beat begins at the next evaluation')
                line = None
        else:
            self.claim()
        if RANK == 0:                           # last: a refused --resume changes no file
            self.begin_files(step)
        self.saved = {}                         # its weights and moments would stay in memory
        return step, line

    def begin_files(self, step):
        """Write the knobs, cut the logs of a resumed run, and begin wandb."""
        self.path.mkdir(parents=True, exist_ok=True)
        words = self.config | {'words': sys.argv[1:]}
        (self.path / 'config.tmp').write_text(json.dumps(words, indent=1))
        os.replace(self.path / 'config.tmp', self.path / 'config.json')     # whole, or the old one
        for temporary in self.path.glob('ckpt.pt.*.tmp'):       # of a run that was killed
            temporary.unlink()
        for name in ('samples.jsonl', 'log.jsonl'):
            with open(self.path / name, 'ab+') as file:
                file.seek(0)                    # the last line may be half a line
                kept = [x for x in file if x.endswith(b'\n') and json.loads(x)['step'] < step]
                file.truncate(len(b''.join(kept)))
        project = self.config['wandb_project']
        if project:
            import wandb
            self.wandb = wandb.init(project=project, name=self.path.name, config=self.config,
                                    id=self.saved.get('wandb'), resume='allow')
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
        if RANK == 0:
            with open(self.path / name, 'a') as file:
                for record in records:
                    print(json.dumps({'step': step} | record), file=file)

    def log(self, step, numbers, to_console=True):
        """Write the numbers of a step or of an evaluation."""
        assert all(map(math.isfinite, numbers.values())), f"step {step}: not finite: {numbers}"
        self.append('log.jsonl', step, [numbers])
        if self.wandb:
            self.wandb.log({'step': step} | numbers)
        if to_console:
            say(f'step {step:5}{console_text(numbers, self.parts)}')

    def log_samples(self, step, samples, to_console=False):
        """Write samples, and print them as one group."""
        self.append('samples.jsonl', step, samples)
        if to_console and samples:
            print_group(samples, ['reward', *self.parts, 'advantage'])


def refuse_wandb_without_key():
    """wandb would ask for its key when it begins, after networks were made."""
    try:
        import wandb
    except ImportError:
        sys.exit("wandb_project needs wandb: pip install wandb")
    is_offline = os.environ.get('WANDB_MODE') in ('offline', 'disabled')
    assert is_offline or wandb.login(prompt=False), (
        "wandb has no key: run `wandb login`, or set WANDB_MODE=offline")


class Stop:
    """is_asked says whether Ctrl-C, SIGTERM, or SIGHUP of a closed terminal has come. The first one
    lets the step end, and then the run saves itself. The second one ends the run."""
    is_asked = False

    def __init__(self):
        for name in ('SIGINT', 'SIGTERM', 'SIGHUP'):
            number = getattr(signal, name, None)        # Windows has no SIGHUP; nohup ignores it
            if number and signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self)
        if hasattr(os, 'register_at_fork'):     # not on Windows
            os.register_at_fork(after_in_child=self.leave_to_parent)

    def leave_to_parent(self):
        """Let the parent decide about Ctrl-C, in a process that a reward has forked: the step may
        need it. SIGTERM ends it, so that a Pool can."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for name in ('SIGINT', 'SIGHUP'):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    def __call__(self, number, frame):
        if self.is_asked:
            raise KeyboardInterrupt('stopped at once')
        self.is_asked = True
        # print() could be what was interrupted.
        os.write(2, b'\nstopping after this step; the same command with --resume=True goes on; '
                    b'once more to stop at once\n')
