"""The folder of a run: its log and its checkpoints; and the end of a run, which leaves both
whole."""
import contextlib
import inspect
import json
import linecache
import os
import secrets
import shutil
import signal
import sys
import time
import zipfile
import zlib
from pathlib import Path

import filelock
import torch
import torch.distributed as dist

from run.command import fail, fail_unknown, find
from run.machine import all_reduce, barrier, n_ranks, print0, rank

# What a resumed run may change; anything else makes another experiment.
FREE = ('max_iters', 'learning_rate', 'min_lr', 'warmup_iters', 'log_interval', 'eval_interval',
        'device', 'compile', 'wandb_project', 'out_dir', 'resume')


# When something ends the process:
#     before the first step    it ends at once; nothing has been learned yet
#     while a step samples     the step ends, or fails and the one before it is saved
#     while a step learns      a signal waits for the end of the step; after an error the weights
#                              belong to no step, and the last checkpoint stands
#     between two steps        ckpt.pt is saved
# SIGKILL cannot be seen: the last checkpoint stands.


class Signals:
    """Ctrl-C, a closed terminal, and the SIGTERM of a cluster that wants its machine back, end the
    process at once, without a traceback. Inside of ending() the first signal only sets the exit
    code, so that the present step can end and be saved."""
    code = 0
    finish_step = False

    def __init__(self):
        self.pid = os.getpid()
        self.handle_all(self.handle)

    def handle_all(self, handler):
        for name in ('SIGINT', 'SIGTERM', 'SIGHUP'):
            number = getattr(signal, name, None)                # Windows has no SIGHUP
            if number and signal.getsignal(number) != signal.SIG_IGN:       # as nohup wants it
                signal.signal(number, handler)

    def handle(self, number, frame):
        if os.getpid() != self.pid:             # a process that a reward has forked, in a pool
            if number == signal.SIGTERM:        # the pool ends it; Ctrl-C is for us
                os._exit(128 + number)
            return
        self.code = 128 + number
        if not self.finish_step:
            say("stopped")
            sys.exit(self.code)
        self.handle_all(signal.SIG_DFL)         # the next one ends the process
        say("stopping after this step; once more to stop at once")

    def stop_if_asked(self, device):
        """Exit if any rank got a signal, so that all of them stop after the same step."""
        # Each rank gets its signals by itself, and perhaps a step apart. A rank that left alone
        # would let the others wait for its gradients.
        code = int(all_reduce(torch.tensor(self.code, device=device), dist.ReduceOp.MAX))
        if code:
            sys.exit(code)

    @contextlib.contextmanager
    def ending(self, save):
        """Call save('ckpt.pt') if anything ends this block early: a signal, an error, a full disk
        behind stdout, a reward that calls sys.exit(). save() returns the step that it saved."""
        self.finish_step = True
        try:
            yield
        except FloatingPointError:              # the weights are ruined, though each is finite
            raise
        except BaseException:
            step = save('ckpt.pt')
            message = f"stopped after step {step}; the same command with --resume=True goes on"
            if step is None:
                message = "stopped while a step changed the policy; the last checkpoint stands"
            if rank() == 0:
                say(message)
            raise
        self.finish_step = False


def say(message):
    """Write a line to stderr, whatever became of it."""
    with contextlib.suppress(OSError):
        os.write(2, f'\n{message}\n'.encode())


# ---- the folder and its log ----------------------------------------------------------------------


class RunFolder:
    """The folder of a run: config.json, checkpoints, and log.jsonl and samples.jsonl, one JSON
    object a line. Of several ranks only the first writes.

    A new run moves an older one out of its way. A resumed run appends, and may repeat the steps
    after the last checkpoint. So a line takes the place of all lines above it that are of the same
    step or of later ones."""

    wandb = None
    lock = None

    def __init__(self, path, resume):
        """Exit if path holds something else than a run."""
        self.began_in = os.getcwd()             # a reward may change the working directory
        self.path = Path(os.path.abspath(path))
        self.resume = resume
        # Before networks are made and the start is evaluated: a wrong folder is refused in the
        # first second.
        if self.is_old() and not Path(self.path, 'log.jsonl').exists():
            fail(f"{path} is no folder of a run; choose another --out_dir")
        writable = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        assert os.access(writable, os.W_OK), f"{path} cannot be written; choose another --out_dir"
        for folder in self.path.parents:        # which the next run there would move aside
            assert not Path(folder, 'log.jsonl').exists(), (
                f"{self.path} is in {folder}, the folder of a run; choose another --out_dir")

    def is_old(self):
        """Return whether there is something in the folder."""
        return self.path.exists() and any(self.path.iterdir())

    def open(self, config, networks=()):
        """Begin to write. config: all knobs. networks: the policy, and the judge or None."""
        if rank() > 0:
            return
        if config['wandb_project']:             # also log to Weights & Biases
            self.open_wandb(config)             # without a key nothing has been moved yet
        if self.is_old() and not self.resume:   # perhaps since a minute ago
            needed = [config[name] for name in ('generator', 'judge', 'dataset')] + sys.argv[1:]
            needed += [network.args.get('folder', '') for network in networks if network]
            self.move_aside(needed)
        os.makedirs(self.path, exist_ok=True)
        # Held from here on, so that no other run can write here or move this folder aside.
        self.lock = self.lock or self.acquire()
        self.file = open_log(self.path / 'log.jsonl')
        self.samples = open_log(self.path / 'samples.jsonl')
        # the knobs of the last command, if the run was resumed with others
        Path(self.path, 'config.json').write_text(json.dumps(config, indent=1))
        self.began = time.time()
        self.cpu_began = time.process_time()
        if self.wandb:
            Path(self.path, 'wandb_id').write_text(self.wandb_id)

    def open_wandb(self, config):
        """Begin a run there. A resumed run goes on in the same one."""
        known = self.path / 'wandb_id'
        self.wandb_id = secrets.token_hex(8)
        if self.resume and known.exists():
            self.wandb_id = known.read_text()
        try:
            import wandb
            self.wandb = wandb.init(project=config['wandb_project'], name=self.path.name,
                                    config=config, id=self.wandb_id, resume='allow')
        except Exception as e:                  # no key, or no network
            fail(f"wandb: {e} (the environment WANDB_MODE=offline needs no key)")

    def acquire(self):
        """Return the lock of the folder, which ends with the process. Exit if another has it."""
        try:
            lock = filelock.FileLock(self.path / 'lock')
            lock.acquire(timeout=0)
            return lock
        except filelock.Timeout:
            fail(f"another run is already writing to {self.path}; choose another --out_dir=DIR")

    def move_aside(self, needed):
        """Rename the folder: out-grpo becomes out-grpo-1, or the first free number."""
        for name in needed:                     # perhaps through a link
            if Path(self.began_in, name).resolve().is_relative_to(self.path.resolve()):
                fail(f"{name} is in {self.path.name}, which would be moved aside; choose another "
                     "--out_dir")
        self.acquire().release()                # exits if a run still writes there
        number = 1
        while os.path.exists(f'{self.path}-{number}'):
            number += 1
        os.rename(self.path, f'{self.path}-{number}')
        print(f"{self.path.name} held another run, which is now in {self.path.name}-{number}")

    def log(self, step, numbers):
        """Append a line {'step': step, name: number, 'seconds': ..., 'cpu_seconds': ...}."""
        if rank() > 0:
            return
        # The clocks come last, so that without them two logs can be compared as text.
        line = {'step': step} | numbers
        line['seconds'] = round(time.time() - self.began, 3)
        line['cpu_seconds'] = round(time.process_time() - self.cpu_began, 3)
        print(json.dumps(line), file=self.file, flush=True)
        if self.wandb:
            self.wandb.log(numbers, step=step)

    def log_samples(self, step, samples):
        """Append samples, a list of dicts, to samples.jsonl, one a line."""
        if rank() > 0:
            return
        for sample in samples:
            print(json.dumps({'step': step} | sample, default=str), file=self.samples, flush=True)

    def save(self, name, model, vocabulary, config, more):
        """Save a checkpoint under this name."""
        if rank() > 0:
            return
        # The log is open, so it is ours wherever it went. If the folder was renamed, another run
        # may have this path now, and its checkpoint must not be overwritten.
        ours = os.fstat(self.file.fileno())
        path = self.path / 'log.jsonl'
        assert path.exists() and os.path.samestat(os.stat(path), ours), (
            f"{self.path} was moved, or holds another run now, or its log.jsonl was replaced, so "
            f"{name} was not saved")
        save_checkpoint(self.path / name, model, vocabulary, config, **more)

    def restore(self, config, checksums, model, optimizers):
        """Load the weights of a run and the state of its optimizers. Return its checkpoint. Refuse
        other knobs, texts or networks."""
        # Held before it reads: the run may still be ending.
        if rank() == 0 and Path(self.path, 'ckpt.pt').exists():
            self.lock = self.lock or self.acquire()
        barrier()
        checkpoint = load_checkpoint(os.path.relpath(self.path))
        # Other knobs would make another experiment under the same name, and its evaluations could
        # not be compared with the start.
        saved = checkpoint['config'] | checkpoint['checksums']
        now = config | checksums
        for name in saved:
            if name not in now or name in FREE or saved[name] == now[name]:
                continue
            if name == 'source of rewards':     # a bug in them may have ended the run
                print0("rewards or checker have changed since this run began: what it gains over "
                       "its start may be theirs")
            else:
                fail(f"a resumed run keeps its {name}, {saved[name]!r}, not {now[name]!r}. It may "
                     f"change {', '.join(FREE)}; for another experiment begin a run with "
                     f"--generator={os.path.relpath(self.path)}/ckpt.pt")
        # the weights, and then the moments, which the next step needs as much
        model.load_state_dict(checkpoint['model'])
        for optimizer, state in zip(optimizers, checkpoint['optimizers'], strict=True):
            optimizer.load_state_dict(state)
        return checkpoint


def open_log(path):
    """Return a file to append to. The last line of a run that was killed may be a part of one."""
    file = open(path, 'a')
    if file.tell() > 0 and not path.read_bytes().endswith(b'\n'):
        print(file=file)
    return file


# ---- checkpoints ---------------------------------------------------------------------------------


def checksum(network):
    """Return a number that tells networks apart by their weights."""
    crc = 0
    for name, weight in sorted(network.state_dict().items()):
        crc = zlib.crc32(weight.cpu().contiguous().numpy(), zlib.crc32(name.encode(), crc))
    return crc


def sources_of(functions, words=()):
    """Return the contents of the files in which functions are, and of the config files among words,
    which may have made them of others. A file can be edited while networks are made, so this is
    called before."""
    paths = [find(str(word)) for word in words]
    sources = [Path(path).read_bytes() for path in paths if os.path.isfile(path)]
    for f in functions:
        f = inspect.unwrap(getattr(f, 'func', f))           # of functools.partial, or a decorator
        f = f if hasattr(f, '__code__') else type(f).__call__           # of an object
        if hasattr(f, '__code__'):              # the whole file, which has what they use
            path = f.__code__.co_filename
            if f.__module__ not in sys.modules:     # in a notebook a config file may have changed
                linecache.checkcache(path)
            sources.append(linecache.getlines(path))
    return sources


def checksums(config, texts, sources, networks):
    """Return {name: number} of the dataset's texts, of the files with rewards and checker, and of
    the networks. Exit if the ranks differ in them, or in their config: they would learn different
    things."""
    numbers = {'contents of dataset': zlib.crc32(repr(texts).encode()),
               'source of rewards': zlib.crc32(repr(sources).encode())}
    for name, network in zip(('generator', 'judge'), networks):
        numbers[f'contents of {name}'] = checksum(network)
    if n_ranks() > 1:
        # On several machines a file can differ, or a network can be trained anew.
        seen = [None] * n_ranks()
        dist.all_gather_object(seen, (config, numbers))
        assert all(other == seen[0] for other in seen), (
            "the ranks have different knobs, texts or networks: expected equal commands and files")
    return numbers


def save_checkpoint(path, model, vocabulary, config, **more):
    """Save a network, the vocabulary of its tokenizer and the knobs that made it, under a temporary
    name. Then rename the file: a checkpoint is whole or not there. If the disk is full, or a weight
    is not finite, an older file is unchanged."""
    temporary = Path(f'{path}.tmp')             # of a process that was killed: it is overwritten
    temporary.parent.mkdir(parents=True, exist_ok=True)
    assert all(weight.isfinite().all() for weight in model.state_dict().values()), (
        f"the weights are not finite, so {path} was not overwritten; try a lower learning_rate")
    try:
        torch.save({'model_args': model.args, 'model': model.state_dict(), 'config': config,
                    'vocabulary': vocabulary, **more}, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as e:        # of a full disk torch makes the latter
        megabytes = shutil.disk_usage(temporary.parent).free >> 20
        fail(f"{path} cannot be written (its disk has {megabytes:,} MB left): {e}")
    finally:
        temporary.unlink(missing_ok=True)       # it is still there if something went wrong


def check_exists(path):
    """Exit if there is nothing, and suggest what is near."""
    if not os.path.exists(path):
        near = [str(other) for other in Path(path).parent.glob('*')
                if other.suffix == '.pt' or Path(other, 'ckpt.pt').exists()]
        fail_unknown('there is no run or checkpoint', str(path), near)


def load_checkpoint(path):
    """Return the dict of a checkpoint, or of the ckpt.pt of a run's folder; for a folder that
    save_pretrained of transformers wrote, a dict with its path."""
    if os.path.exists(f'{path}/ckpt.pt'):
        path = f'{path}/ckpt.pt'
    elif os.path.exists(f'{path}/config.json') and not os.path.exists(f'{path}/log.jsonl'):
        return {'model_args': {'folder': path}, 'vocabulary': path, 'config': {}}
    if os.path.isdir(path):
        fail(f"{path} has no ckpt.pt, and no config.json of transformers")
    check_exists(path)
    try:
        # torch does not compare checksums: it would take any weights
        assert zipfile.ZipFile(path).testzip() is None
        # weights_only: a checkpoint is somebody's file, and a pickle can run any code
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        assert {'model_args', 'model', 'config', 'vocabulary'} <= checkpoint.keys()
        return checkpoint
    except Exception as e:                      # pickle, zipfile and torch raise a dozen kinds
        fail(f"{path} is damaged, or no checkpoint and no folder that has a ckpt.pt "
             f"({type(e).__name__})")
