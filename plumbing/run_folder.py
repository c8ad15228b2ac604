"""The folder of a run: config.json (the knobs, and the words of the command), log.jsonl (the
metrics of each step and evaluation), samples.jsonl (completions), and ckpt.pt. Only the first of
several ranks reads and writes."""
import io
import json
import math
import shlex
import sys
import zlib
from pathlib import Path

import filelock
import torch
import torch.distributed as dist

from plumbing.datasets import load
from plumbing.devices import N_RANKS, RANK, from_first_rank
from plumbing.networks import load_checkpoint, move_aside, save_network
from plumbing.process import Mistake, expect, say, writing

# Knobs after whose change the line to beat stays.
OF_THE_RUN = 'max_iters out_dir resume log_interval eval_interval wandb_project device dtype seed'
SCRIPTS = [f'{x}.py' for x in 'train_grpo model tasks judge'.split()] + [
    *map(str, sorted(Path('plumbing').glob('*.py')))]
LINE = 160                      # characters of a line of the console
NEW = {'step': 0, 'line': None, 'files': {}, 'sums': {}, 'words': sys.argv[1:], 'state': [{}],
       'wandb': None, 'records': None}


class RunFolder:
    """The folder of a run. A new run moves an older one out of its way. A resumed run takes the
    steps after its checkpoint again, and cuts them from its logs. Before begin() only the lock is
    written."""
    wandb = None
    sources = ()                                # config files, and what these import and read

    def __init__(self, path, config):
        self.config = config
        try:
            self.path = Path(path).resolve()    # a reward may change the process's folder
        except RuntimeError as e:               # links that go in a circle
            raise Mistake(f"out_dir = {path}: {e}") from None
        try:
            self.saved = NEW | from_first_rank(self.claim)
        except OSError as e:
            raise Mistake(f"out_dir = {path}: {e}") from None
        states = self.saved['state']
        self.state = states[RANK % len(states)]         # there may be more ranks than before

    def claim(self):
        """Refuse a folder of something else, and one to which another run is writing. Return the
        checkpoint of a resumed run."""
        names = {x.name for x in self.path.glob('*')}   # log.jsonl.tmp: a run was killed at once
        is_run = not names or names & {'log.jsonl', 'ckpt.pt', 'log.jsonl.tmp'}
        expect(not self.path.exists() or self.path.is_dir(), f"out_dir = {self.path}: it is a file")
        expect(is_run, f"out_dir = {self.path}: it holds something else than a run: choose another "
               "one")
        # A hidden file, which stays. The lock itself ends with the process.
        self.lock = filelock.FileLock(self.path.with_name(f'.{self.path.name}.lock'))
        try:
            self.lock.acquire(timeout=0)
        except filelock.Timeout:
            is_there = Path(self.lock.lock_file).exists()
            why = "another run is writing to it" if is_there else "it cannot be written"
            raise Mistake(f"out_dir = {self.path}: {why}. Take another one, or end that run"
                          ) from None
        ckpt = self.path / 'ckpt.pt'
        if not self.config['resume']:
            return {}
        if not ckpt.exists():
            say(f"nothing to resume in {self.path}: a new run begins")
            return {}
        saved = load_checkpoint(ckpt)
        expect('step' in saved, f"{ckpt} is a network, and no checkpoint of a run")
        expect(saved['step'] <= self.config['max_iters'], f"{self.path} has taken {saved['step']} "
               f"steps already, and max_iters = {self.config['max_iters']}")
        for name in 'generator', 'optimizer':
            expect(self.config[name] == saved['config'][name], f"{name}: a resumed run keeps the "
                   f"one with which it began, {saved['config'][name]!r}. Its words were: "
                   f"{shlex.join(saved['words'])}")
        return saved

    def begin(self, networks, optimizers, records):
        """Load weights and moments of a resumed run, and begin the logs. Return its step, and its
        line to beat, or None if a knob has changed that is not one of the run, or the records."""
        saved = self.saved
        self.records = zlib.crc32(repr(records).encode())
        step = saved['step']
        line = saved['line']
        if 'model' in saved:
            changed = self.changes(saved['config'])
            try:
                networks.policy.load_state_dict(saved['model'])
            except RuntimeError as e:           # of torch, about names and shapes
                raise Mistake(f"{self.path} is a run of {saved['config']['generator']}, whose "
                              f"weights had other names or shapes: {' '.join(str(e).split())[:200]}"
                              ) from None
            shapes = [[(group.keys(), len(group['params'])) for group in x['param_groups']]
                      for x in (*saved['optimizers'], *[y.state_dict() for y in optimizers])]
            n = len(saved['optimizers'])
            expect(shapes[:n] == shapes[n:], f"{self.path} has moments of other optimizers: a run "
                   "cannot change its make_optimizers()")
            for optimizer, moments in zip(optimizers, saved['optimizers']):
                optimizer.load_state_dict(moments)
            others = from_first_rank(lambda: self.changed_files(networks.files))
            if saved['records'] not in (None, self.records):
                others.append('the dataset has other records now (docs/task.md)')
            say(f"resumed at step {step}" + ''.join(f'; {x}' for x in (*changed.values(), *others)))
            if others or changed.keys() - {*OF_THE_RUN.split()}:
                line = None                     # a new line to beat begins
        if RANK == 0:
            self.begin_wandb()
            if 'model' not in saved and self.path.exists():
                self.move_away(networks.files)
            self.begin_logs(step)
            self.sums = self.sums_of(networks.files)
        self.saved = {}                         # its weights and moments would stay in memory
        return step, line

    def changes(self, config):
        """Return the knobs that differ from an older config, {name: 'name: old -> new'}."""
        names = sorted(config.keys() | self.config.keys() - {'resume'})
        return {x: f'{x}: {config.get(x)} -> {self.config.get(x)}' for x in names
                if x != 'resume' and config.get(x) != self.config.get(x)}

    def sums_of(self, files):
        """Return checksums {path: number} of what decides numbers: networks, scripts, config files,
        and the sources of the dataset."""
        sources = *SCRIPTS, *self.sources, *load(self.config['dataset']).sources
        return {str(x): sum_of(x) for x in (*files.values(), *sources)}

    def changed_files(self, files):
        """Return a sentence for config files that came or went, and for each file that is another
        one. (The names of networks are the knobs' affair.)"""
        sums = self.sums_of(files)
        before = self.saved['sums']
        said = [f'{x} is another file now' for x, old in before.items() if sums.get(x, old) != old]
        came = (sums.keys() ^ before.keys()) - {*files.values(), *self.saved['files'].values()}
        said += [f"{x} is {'new' if x in sums else 'no part of the run any more'}"
                 for x in sorted(came)]
        old, new = [[x for x in words if not x.startswith('--')]
                    for words in (self.saved['words'], sys.argv[1:])]
        return [*said, f'files: {old} -> {new}'] if old != new else said

    def move_away(self, files):
        """Rename the folder of an older run, which has none of the files of this one. The folder of
        a run that failed before its first step was done is taken again."""
        ckpt, log = self.path / 'ckpt.pt', self.path / 'log.jsonl'
        expect(not any(Path(x).resolve().is_relative_to(self.path) for x in files.values()), (
            "a network of this run is in out_dir: choose another one"))
        n_lines = log.read_bytes().count(b'\n') if log.exists() else 0
        if n_lines < 2 and not is_worth_keeping(ckpt):
            ckpt.unlink(missing_ok=True)
            return                              # begin_logs() empties the logs
        move_aside(self.path)

    def begin_logs(self, step):
        """Cut the steps from the logs that come again, and write the knobs."""
        with writing(self.path):
            self.path.mkdir(exist_ok=True, parents=True)
        for half in self.path.glob('ckpt.pt.*.tmp'):    # of a run that was killed
            half.unlink()
        for name in 'log.jsonl', 'samples.jsonl':
            lines = lines_before(self.path / name, step)
            if step > 0 and not lines:
                say(f'{name} has no line of earlier steps')
            elif step > 0 and name == 'log.jsonl' and json.loads(lines[-1])['step'] < step - 1:
                say(f"{name} has no line between {json.loads(lines[-1])['step']} and {step}")
            write_whole(self.path / name, ''.join(lines))
        config = json.dumps(self.config | {'words': sys.argv[1:]}, indent=1)
        write_whole(self.path / 'config.json', config)

    def begin_wandb(self):
        """Log to wandb, too. It may refuse: so before an older run is moved."""
        if self.config['wandb_project']:
            import wandb
            try:
                self.wandb = wandb.init(project=self.config['wandb_project'], name=self.path.name,
                                        config=self.config, id=self.saved['wandb'], resume='allow')
            except (wandb.Error, ValueError) as e:
                raise Mistake(f"wandb: {e} (WANDB_MODE=offline needs no account)") from None

    def save(self, networks, optimizers, step, line, state):
        """Write the checkpoint of a step. Each rank has a state of its own."""
        check_state(state)
        states = [state] * N_RANKS
        if N_RANKS > 1:
            dist.all_gather_object(states, state)
        if RANK == 0:
            save_network(self.path / 'ckpt.pt', networks.policy, config=self.config, step=step,
                         line=line, state=states, wandb=self.wandb and self.wandb.id,
                         files=networks.files, sums=self.sums, words=sys.argv[1:],
                         records=self.records,
                         optimizers=[x.state_dict() for x in optimizers])

    def append(self, name, step, records):
        """Append records to a file of JSON lines."""
        if RANK == 0:
            path = self.path / name
            with writing(path), open(path, 'a', encoding='utf-8') as file:
                for record in records:
                    print(json.dumps({'step': step} | record), file=file)

    def log(self, step, metrics, is_shown=True, hidden=()):
        """Write the metrics of a step or of an evaluation. The console leaves out names with a /,
        hidden ones, and what does not fit into a line."""
        wrong = {name: x for name, x in metrics.items()
                 if not isinstance(x, int | float) or not math.isfinite(x)}
        expect(not wrong, f"step {step}: not finite, or no number of Python: {wrong}. (The last "
               "checkpoint stays.)")
        self.append('log.jsonl', step, [metrics])
        self.tell_wandb(step, lambda: metrics)
        if is_shown:
            line = f'step {step:5}'
            for name, x in metrics.items():
                part = f' | {name} {x:.3f}'
                if '/' not in name and name not in hidden and len(line + part) <= LINE:
                    line += part
            say(line)

    def log_samples(self, step, samples):
        """Write the completions of an evaluation."""
        self.append('samples.jsonl', step, samples)
        self.tell_wandb(step, lambda: {'samples': table_of(samples)})

    def tell_wandb(self, step, entry):
        """Send entry() to wandb. If it fails, by a full disk for example, the run goes on without
        it."""
        if self.wandb:
            try:
                self.wandb.log(entry(), step)
            except Exception as e:              # of many kinds
                say(f'wandb gets nothing any more: {e!r:.200}')
                self.wandb = None


def table_of(samples):
    """Return samples as a table of wandb."""
    import wandb
    names = [*samples[0]['scores']]
    rows = [[x['prompt'], x['completion'], *x['scores'].values()] for x in samples]
    return wandb.Table(['prompt', 'completion', *names], rows)


def is_worth_keeping(ckpt):
    """Has a checkpoint taken a step, or was it asked for none? (A damaged one is kept, too.)"""
    if not ckpt.exists():
        return False
    try:
        saved = load_checkpoint(ckpt)
    except Mistake:
        return True
    return saved.get('step') != 0 or saved['config']['max_iters'] == 0


def config_of(folder):
    """Return what config.json has: the knobs of a run, and the words of its command."""
    path = Path(folder, 'config.json')
    try:
        config = json.loads(path.read_text('utf-8'))
    except (OSError, ValueError) as e:
        raise Mistake(f"{path} is not there, or it is damaged: {e}") from None
    expect(isinstance(config, dict) and isinstance(config.get('words'), list), (
        f"{path} is damaged: it has no `words` of a command"))
    return config


def sum_of(path):
    """Return a checksum of a file, and 0 of a folder."""
    return zlib.crc32(Path(path).read_bytes()) if Path(path).is_file() else 0


def write_whole(path, text):
    """Write a file, which is the new one or the old one, whenever the process is killed."""
    temporary = Path(f'{path}.tmp')
    with writing(path):
        temporary.write_text(text, 'utf-8')
        temporary.replace(path)


def lines_before(path, step):
    """Return the lines of a log that are of earlier steps. A line that was cut off is left out."""
    kept = []
    for line in path.read_text('utf-8', 'replace').split('\n') if path.exists() else ():
        try:
            if json.loads(line)['step'] < step:
                kept.append(line + '\n')
        except (ValueError, TypeError, KeyError):
            continue
    return kept


def check_state(state):
    """Refuse what a checkpoint could not give back: nobody could open it again."""
    for name, x in state.items():
        box = io.BytesIO()
        try:
            torch.save(x, box)
            box.seek(0)
            torch.load(box, weights_only=True)
        except Exception:
            raise Mistake(f"state[{name!r}] is a {type(x).__name__}, or has one in it: expected "
                          "numbers, texts, tensors, lists, tuples and dicts (float(x) makes a "
                          "number of numpy's)") from None


def check_shared(state, policy):
    """Refuse a tensor in `state` that is a weight of the policy: the next step would change it."""
    weights = {x.data_ptr() for x in policy.parameters()}
    for name, x in state.items():
        for tensor in x.values() if isinstance(x, dict) else [x]:
            is_weight = isinstance(tensor, torch.Tensor) and tensor.data_ptr() in weights
            expect(not is_weight, f"state[{name!r}] has weights of the policy, which the next step "
                   "changes: write x.clone()")
