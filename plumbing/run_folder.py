"""The folder of a run: config.json (the knobs, and the words of the command), log.jsonl (the
numbers of each step and evaluation), samples.jsonl (completions), and ckpt.pt. Only the first of
several ranks reads and writes."""
import json
import math
import sys
from pathlib import Path

import filelock
import torch.distributed as dist

from plumbing.devices import N_RANKS, RANK, from_first_rank
from plumbing.networks import load_checkpoint, save_network
from plumbing.process import say

# Knobs after whose change the line to beat stays.
OF_THE_RUN = 'max_iters out_dir resume log_interval eval_interval wandb_project device dtype seed'
NEW = {'step': 0, 'line': None, 'files': {}, 'state': [{}], 'wandb': None}


class RunFolder:
    """The folder of a run. A new run moves an older one out of its way. A resumed run takes the
    steps after its checkpoint again, and cuts them from its logs. Before begin() only the lock is
    written."""
    wandb = None

    def __init__(self, path, config):
        self.path = Path(path).resolve()        # a reward may change the folder of the process
        self.config = config
        self.saved = NEW | from_first_rank(self.claim)
        states = self.saved['state']
        self.state = states[RANK % len(states)]         # there may be more ranks than before

    def claim(self):
        """Refuse a folder of something else, and one to which another run is writing. Return the
        checkpoint of a resumed run."""
        assert (self.path / 'log.jsonl').exists() or not any(self.path.glob('*')), (
            "out_dir holds something else than a run: choose another one")
        self.lock = filelock.FileLock(f'{self.path}.lock')      # ends with the process
        self.lock.acquire(timeout=0)
        ckpt = self.path / 'ckpt.pt'
        return load_checkpoint(ckpt) if self.config['resume'] and ckpt.exists() else {}

    def begin(self, networks, optimizers):
        """Load weights and moments of a resumed run, and begin the logs. Return its step, and its
        line to beat, or None if a knob has changed that is not one of the run."""
        saved = self.saved
        step = saved['step']
        line = saved['line']
        if 'model' in saved:
            networks.policy.load_state_dict(saved['model'])
            for optimizer, moments in zip(optimizers, saved['optimizers'], strict=True):
                optimizer.load_state_dict(moments)
            config = saved['config']
            changed = {x for x in config | self.config if config.get(x) != self.config.get(x)}
            say(f"resumed at step {step}; knobs that differ: {changed - {'resume'} or None}")
            if changed - {*OF_THE_RUN.split()}:
                line = None                     # a new line to beat begins
        elif RANK == 0 and (self.path / 'log.jsonl').exists():
            self.move_away(networks.files)
        if RANK == 0:
            self.begin_logs(step)
        self.saved = {}                         # its weights and moments would stay in memory
        return step, line

    def move_away(self, files):
        """Rename the folder of an older run, which has none of the files of this one."""
        assert not any(Path(x).resolve().is_relative_to(self.path) for x in files.values()), (
            "a network of this run is in out_dir: choose another one")
        number = 1
        while (older := Path(f'{self.path}-{number}')).exists():
            number += 1
        self.path.rename(older)
        say(f'an older run is now in {older}')

    def begin_logs(self, step):
        """Cut the steps from the logs that come again, write the knobs, and begin wandb."""
        self.path.mkdir(exist_ok=True)
        for name in 'log.jsonl', 'samples.jsonl':
            with open(self.path / name, 'ab+') as file:
                file.seek(0)                    # the last line may be half a line
                kept = [x for x in file if x.endswith(b'\n') and json.loads(x)['step'] < step]
                file.truncate(len(b''.join(kept)))
        (self.path / 'config.json').write_text(
            json.dumps(self.config | {'words': sys.argv[1:]}, indent=1))
        if self.config['wandb_project']:
            import wandb
            self.wandb = wandb.init(project=self.config['wandb_project'], name=self.path.name,
                                    config=self.config, id=self.saved['wandb'], resume='allow')

    def save(self, networks, optimizers, step, line, state):
        """Write the checkpoint of a step. Each rank has a state of its own."""
        states = [state] * N_RANKS
        if N_RANKS > 1:
            dist.all_gather_object(states, state)
        if RANK == 0:
            save_network(self.path / 'ckpt.pt', networks.policy, config=self.config, step=step,
                         line=line, state=states, wandb=self.wandb and self.wandb.id,
                         files=networks.files, optimizers=[x.state_dict() for x in optimizers])

    def append(self, name, step, records):
        if RANK == 0:
            with open(self.path / name, 'a') as file:
                for record in records:
                    print(json.dumps({'step': step} | record), file=file)

    def log(self, step, numbers, is_shown=True):
        """Write the numbers of a step or of an evaluation. The console leaves out those with /."""
        assert all(map(math.isfinite, numbers.values())), f"step {step}: not finite: {numbers}"
        self.append('log.jsonl', step, [numbers])
        if self.wandb:
            self.wandb.log(numbers, step)
        if is_shown:
            say(' | '.join([f'step {step:5}', *[
                f'{name} {x:.3f}' for name, x in numbers.items() if '/' not in name]]))
