"""The folder of a run: checkpoints and a log; and how a run ends before its last step."""
import json
import os
import signal
import sys
import time
import zlib
from pathlib import Path

import filelock
import torch
import torch.distributed as dist

from run.command import fail, fail_unknown, reading, values_in
from run.machine import all_reduce, print0, rank

# What a resumed run may change; anything else makes another experiment.
FREE = ('max_iters', 'learning_rate', 'min_lr', 'warmup_iters', 'log_interval', 'eval_interval',
        'device', 'compile', 'wandb_project', 'out_dir', 'resume')


# ---- checkpoints ---------------------------------------------------------------------------------


def save_checkpoint(path, model, vocabulary, config, **more):
    """Save a network, the vocabulary of its tokenizer and the knobs that made it. The file gets its
    name when it is complete and can be opened: a checkpoint is whole or not there, and if a weight
    is not finite, or the disk is full, the older file stands."""
    assert all(weight.isfinite().all() for weight in model.state_dict().values()), (
        f"the weights are not finite, so {path} was not overwritten; try a lower learning_rate")
    temporary = Path(f'{path}.tmp')
    try:
        with reading(f'{path} (is the disk full? STATE may have plain values and tensors)'):
            with open(temporary, 'wb') as file:
                torch.save({'model_args': model.args, 'model': model.state_dict(),
                            'config': config, 'vocabulary': vocabulary, **more}, file)
            torch.load(temporary, map_location='cpu', mmap=True, weights_only=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path):
    """Return the dict of a checkpoint, or of the ckpt.pt in the folder of a run. Any other folder
    is one of transformers, for which it is a dict with its path."""
    check_exists(path)
    if os.path.exists(f'{path}/ckpt.pt'):
        path = f'{path}/ckpt.pt'
    if os.path.isdir(path):
        return {'model_args': {'folder': path}, 'config': {}}
    with reading(path):
        # weights_only: a checkpoint is somebody's file, and a pickle can run any code
        return torch.load(path, map_location='cpu', weights_only=True)


def check_exists(path):
    """Exit if there is nothing, and suggest what is near."""
    if not os.path.exists(path):
        near = map(str, Path(path).parent.glob('*'))
        fail_unknown('there is no run or checkpoint (a model of the hub: download its folder '
                     'first, `hf download NAME --local-dir FOLDER`)', path, near)


def checksums(paths):
    """Return {path: checksum} of files, which tells whether they are those of another command."""
    return {path: zlib.crc32(Path(path).read_bytes()) for path in sorted(paths) if path}


# ---- the folder ----------------------------------------------------------------------------------


class RunFolder:
    """The folder of a run: config.json (its knobs), checkpoints, and two logs of one JSON object a
    line, log.jsonl and samples.jsonl. Of several ranks only the first writes.

    A new run moves an older one out of its way. A resumed run cuts off what the logs say of steps
    after the checkpoint, because it takes them again."""

    wandb = None

    def __init__(self, path, resume):
        """Say which folder it will be. Nothing is written before open(), but what cannot work is
        refused here, before networks are made."""
        self.path = Path(path).expanduser().resolve()
        self.resume = resume
        self.logs = [self.path / name for name in ('log.jsonl', 'samples.jsonl')]
        assert not self.path.exists() or not os.listdir(self.path) or self.logs[0].exists(), (
            f"out_dir = '{path}' is no folder of a run, and holds something else")
        if resume:
            check_exists(self.path)

    def open(self, config, model, optimizers):
        """Begin to write. config: all knobs. Return the checkpoint of a resumed run; None if the
        run is new, or was killed before it had one."""
        if rank() == 0:
            self.acquire()
        checkpoint = None
        if self.resume and Path(self.path, 'ckpt.pt').exists():
            checkpoint = self.restore(config, model, optimizers)
        if rank() > 0:
            return checkpoint
        if checkpoint:
            for path, size in zip(self.logs, checkpoint['log_sizes']):
                os.truncate(path, size)
        elif self.logs[0].exists() and self.logs[0].stat().st_size > 0:     # of another run
            self.move_aside(config)
        self.files = [open(path, 'a') for path in self.logs]
        # the knobs of the last command, if the run was resumed with others, and its words
        text = json.dumps(config | {'words': sys.argv[1:]}, indent=1)
        Path(self.path, 'config.json').write_text(text)
        if config['wandb_project']:
            import wandb
            with reading('wandb_project'):
                self.wandb = wandb.init(project=config['wandb_project'], name=self.path.name,
                                        config=config)
            # A reward may log there, too, so the steps that wandb counts are not ours.
            self.wandb.define_metric('*', step_metric='step')
        self.began = time.time()
        self.cpu_began = time.process_time()
        return checkpoint

    def acquire(self):
        """Make the folder, and take its lock, which ends with the process. It stands beside the
        folder, so that nobody else comes in while the folder is renamed."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = filelock.FileLock(f'{self.path}.lock')
        try:
            self.lock.acquire(timeout=0)
        except filelock.Timeout:
            fail(f"another run is already writing to {self.path}; choose another --out_dir=DIR")

    def restore(self, config, model, optimizers):
        """Load weights and moments of the run, and return its checkpoint. Exit if it had other
        knobs: its evaluations could not be compared with the start."""
        checkpoint = load_checkpoint(self.path)
        for name, value in checkpoint['config'].items():
            assert name in FREE or config.get(name) == value, (
                f"a resumed run keeps its {name}, {value!r}, not {config.get(name)!r}; it may "
                f"change {', '.join(FREE)}")
        model.load_state_dict(checkpoint['model'])
        for optimizer, state in zip(optimizers, checkpoint['optimizers']):
            optimizer.load_state_dict(state)
        return checkpoint

    def move_aside(self, config):
        """Rename the folder: out-grpo becomes out-grpo-1, or the first free number."""
        names = [str(value) for knob, value in config.items() if knob != 'out_dir']
        names += [word for word in values_in(sys.argv[1:]) if word != config.get('out_dir')]
        for name in names:
            path = Path(name).resolve()
            assert self.path not in (path, *path.parents), (
                f"{name} is in {self.path.name}, which would be moved aside; choose another "
                "--out_dir")
        number = 1
        while os.path.exists(f'{self.path}-{number}'):
            number += 1
        self.path.rename(f'{self.path}-{number}')
        self.path.mkdir()
        print(f"{self.path.name} held another run, which is now in {self.path.name}-{number}")

    def log(self, step, numbers):
        """Append a line {'step': step, name: number, 'seconds': ..., 'cpu_seconds': ...}."""
        if rank() > 0:
            return
        # The clocks come last, so that without them two logs can be compared as text.
        line = {'step': step, **numbers, 'seconds': round(time.time() - self.began, 3),
                'cpu_seconds': round(time.process_time() - self.cpu_began, 3)}
        print(json.dumps(line), file=self.files[0], flush=True)
        if self.wandb:
            self.wandb.log(line)

    def log_samples(self, step, samples):
        """Append samples, a list of dicts, to samples.jsonl, one a line."""
        if rank() == 0:
            lines = [json.dumps({'step': step} | sample) for sample in samples]
            print(*lines, sep='\n', file=self.files[1], flush=True)

    def save(self, name, model, vocabulary, config, optimizers, **more):
        """Save a checkpoint under this name."""
        if rank() == 0:
            more['optimizers'] = [optimizer.state_dict() for optimizer in optimizers]
            more['log_sizes'] = [path.stat().st_size for path in self.logs]
            save_checkpoint(self.path / name, model, vocabulary, config, **more)


# ---- the end of a run ----------------------------------------------------------------------------


def on_signal(handler):
    """Handle Ctrl-C, and the SIGTERM of a cluster that wants its machine back."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def begin():
    """Begin a script: a signal ends it, and letters that the console lacks are escaped."""
    sys.stdout.reconfigure(errors='backslashreplace')
    on_signal(stop)


def stop(number, frame):
    """End the process at once, without a traceback. (A terminal sends Ctrl-C to all processes, and
    a run ends the pretraining that it has begun, so a signal can come twice.)"""
    on_signal(signal.SIG_IGN)
    sys.exit(128 + number)                      # as a shell would say it


class Ending:
    """How a run ends before its last step. The loop evaluates, samples and scores inside of `with
    ending:`, where the policy has learned from a whole number of steps. There it is saved

    after a signal, which lets the present step end
    if a reward fails, or anything else goes wrong, but for numbers that are not finite

    Otherwise the last checkpoint stands: after an error in an update, on a full disk, after
    SIGKILL. The steps since then are lost, and a resumed run takes them again."""
    signal = 0                  # that has come

    def __init__(self, save, device):
        """save(name): save a checkpoint of the present step; return False if there is none yet."""
        self.save = save
        self.device = device
        on_signal(self.wait)

    def wait(self, number, frame):
        """Handle a signal: let the step end. The next signal ends the process."""
        self.signal = number
        on_signal(signal.SIG_DFL)
        # (not print(), which the signal may have interrupted)
        os.write(2, b'\nstopping after this step; once more to stop at once\n')

    def __enter__(self):
        # Each rank gets its signals by itself, and perhaps a step apart. A rank that left alone
        # would let the others wait for its gradients.
        number = all_reduce(torch.tensor(self.signal, device=self.device), dist.ReduceOp.MAX)
        if number:
            self.keep()
            stop(int(number), None)

    def __exit__(self, kind, error, trace):
        if kind and kind is not FloatingPointError:         # then the policy is ruined
            self.keep()

    def keep(self):
        if self.save('ckpt.pt'):
            print0("stopped between two steps; the same command with --resume=True goes on")
