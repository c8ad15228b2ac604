"""What surrounds a run: rules of its knobs, device and ranks, exact resume, clock and log."""
import atexit
import ctypes
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from config.configurator import fail

RULES = {       # what knobs that the scripts share must fulfil, and why
    "blank_kind in ('random', 'span', 'suffix')": '', "0 <= blank_low <= blank_high <= 1": '',
    "block_size >= 2 and blank_span >= 1 and batch_size >= 1 and max_iters >= 1": '',
    "0 <= learning_rate < 1e30 and weight_decay >= 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1": '',
    "dtype in ('auto', 'float32', 'bfloat16', 'float64')": '', "seed >= 0": '',
    "grad_clip >= 0 and eval_interval >= 0": "0 is off"}
GRPO_RULES = {  # and those of train_grpo.py; `world` is the number of ranks
    **RULES, "mode in ('fill', 'causal')": '', "backend in ('', 'gloo', 'nccl')": '',
    "adv_norm in ('none', 'std', 'batch', 'rloo')": '', "ratio in ('token', 'sequence')": '',
    "loss_norm in ('token', 'sequence', 'constant')": '', "0 < top_p <= 1 and temperature > 0": '',
    "kl_type in ('exact', 'k1', 'k2', 'k3', 'k3_ratio')": '', "optimizer in ('muon', 'adamw')": '',
    "group_size >= 2": "a group of one is its own mean and teaches nothing",
    "gradient_accumulation_steps >= 1 and mini_batches >= 1 and inner_updates >= 1": '',
    "gradient_accumulation_steps % (mini_batches * world) == 0": "each rank takes an equal share",
    "rewards and all(type(weight) in (int, float) for weight in rewards.values())": '',
    "gen_batch_size == 0 or gen_batch_size >= group_size": '',
    "kl_beta >= 0 and target_kl >= 0 and entropy_coef >= 0": "0 is off",
    "kl_beta > 0 or not (kl_in_reward or target_kl)": "0 loads no reference",
    "kl_horizon > 0 and clip_high >= 0 and 0 <= clip_low <= 1": '',
    "top_k >= 0 and judge_batch_size >= 0": "0 is off", "log_interval >= 1": '',
    "eval_prompts >= 1": ''}
# what may change when a run is resumed
HARMLESS = set("""out_dir resume log_interval eval_interval eval_prompts save_interval device
    sample_interval wandb_log wandb_project wandb_run_name compile backend gen_batch_size
    judge_batch_size generator_recipe judge_recipe benchmark explain""".split())
SHOWN = """mean_reward mean_kl entropy dead_groups distinct grad_norm completions_per_s eval/verify
    eval/verify_argmax eval/ref_verify eval/ref_verify_argmax eval/reward eval/ref_reward eval/kl
    eval/distinct eval/judge_auc""".split()     # on the console

def check(rules, config):
    """Ends with one line if an expression of rules (text -> why) is not true of the config."""
    for rule, why in rules.items():
        if not eval(rule, {}, config):
            found = (f"{k} = {v!r}" for k, v in config.items() if re.search(rf'\b{k}\b', rule))
            fail(f"{', '.join(found)}: expected {rule}{why and ' (' + why + ')'}")

def run(command):
    """Runs one of our scripts, as one process; ends with its exit code if it fails."""
    print('$', *command, flush=True)
    code = subprocess.run([sys.executable, *command[1:]],
                          env=os.environ | {'RANK': '0', 'WORLD_SIZE': '1'}).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)

def digest(*nets):
    """A hash of the weights of networks, by which a resumed run knows them again; None: skipped."""
    weights = (p.detach().cpu().view(torch.uint8) for net in nets if net for p in net.parameters())
    return hashlib.sha256(b''.join(w.numpy().tobytes() for w in weights)).hexdigest()[:16]

def resumable(ckpt, config):
    """Ends with one line if a checkpoint's settings are not those of this run."""
    free = HARMLESS | ({'max_iters'} if config['lr_decay_iters'] else set())
    differ = [f"{key} {ckpt['config'].get(key)!r} -> {value!r}" for key, value in config.items()
              if ckpt['config'].get(key) != value and key not in free]
    if ckpt['step'] > config['max_iters']:
        differ = [*differ, f"step {ckpt['step']}, max_iters = {config['max_iters']}"]
    if differ:
        fail(f"{config['out_dir']}/ckpt.pt was made with other settings: {', '.join(differ)}; "
             "continue with the old ones, or start anew in another --out_dir")

def quick_products():
    """Lets float32 products of this CPU use another library if that is as exact; says which.
    On AMD 'medium' calls one that is twice as fast, elsewhere it may round to bfloat16. Its error
    decides: by stopwatch, the last bits of a run would depend on the load of the machine."""
    torch.set_float32_matmul_precision('medium')
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    exact = a.double() @ b.double()
    error = ((a @ b - exact).norm() / exact.norm()).item()      # of float32: about 3e-7
    if error > 1e-6:
        torch.set_float32_matmul_precision('highest')
    taken = torch.get_float32_matmul_precision()
    return f"float32 products '{taken}' (error of 'medium': {error:.0e})"

class Machine:
    """Fails with one line if the device is not there. note: what was chosen, in words."""
    def __init__(self, device, dtype, backend=''):
        self.rank, self.world = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
        have = [*['cuda'] * torch.cuda.is_available(), *['mps'] * torch.backends.mps.is_available(),
                'cpu']
        name = have[0] if device == 'auto' else device
        self.type, self.main = name.split(':')[0], self.rank == 0
        if self.type not in have:
            fail(f"device = {device} is not available; there is {', '.join(have)}, or auto")
        if self.type == 'cuda' and self.world > 1:
            name = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(name)
        can = getattr(torch.cpu, 'get_capabilities', dict)() if self.type == 'cpu' else {}
        fast = self.type == 'cuda' or can.get('avx512_bf16') or can.get('amx_bf16')
        self.dtype = dtype if dtype != 'auto' else 'bfloat16' if fast else 'float32'
        torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
        self.device, self.note = torch.device(name), f"{name}, {self.dtype}"
        if self.type == 'cpu':
            with suppress(Exception):       # glibc: keep freed buffers mapped (options -1, -2, -3);
                for option, size in ((-1, 2 ** 30), (-2, 2 ** 26), (-3, 2 ** 26)):
                    ctypes.CDLL(None).mallopt(option, size)     # page faults cost up to half a step
            self.note += f", {torch.get_num_threads()} threads, {quick_products()}"
        elif self.type == 'cuda':
            torch.set_float32_matmul_precision('high')
        if self.world > 1:      # ranks wait for as long as it takes rank 0 to make what is missing
            dist.init_process_group(backend or ('nccl' if self.type == 'cuda' else 'gloo'),
                                    timeout=timedelta(hours=9))
            atexit.register(dist.destroy_process_group)         # or gloo aborts at times
            self.note += f", {self.world} ranks"

    def listen(self):
        """From now on the first Ctrl-C or SIGTERM is noted in stop, two numbers: heard by this
        rank, and agreed on by all (whose loop writes that); a second one stops at once."""
        def on_signal(number, frame):
            if self.stop[0]:
                raise SystemExit(128 + number)
            self.stop[0] = 128 + number
            if self.main:                       # a print here may interrupt another, and fail
                os.write(1, b"\nfinishing this step and saving; once more to stop at once\n")

        self.stop = torch.zeros(2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)

    def leave(self, code):
        """Ends the process: ranks together, and without last rites, in which gloo may abort."""
        if self.world > 1:
            dist.barrier()
            sys.stdout.flush()
            os._exit(code)
        sys.exit(code)

    def autocast(self):
        """Context whose products are bfloat16, if they are to be; softmax stays float32."""
        return torch.autocast(self.type, torch.bfloat16, enabled=self.dtype == 'bfloat16')

    def frozen(self, net):
        """Makes a network one that is not trained: cast here once, not at every product."""
        net.requires_grad_(False)
        if self.dtype == 'bfloat16':
            net.blocks.bfloat16()

    def once(self, make):
        """make(), called by rank 0 first, so that the others find what it made."""
        if self.world > 1:
            if self.main:
                make()
            dist.barrier()
        return make()

    def sum(self, tensor, how='SUM'):
        """Sum (or MAX) over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, how))
        return tensor

    def sum_gradients(self, model):
        """Adds up the gradients of all ranks, in one message."""
        if self.world > 1:
            grads = [p.grad for p in model.parameters()]
            vector_to_parameters(self.sum(parameters_to_vector(grads)), grads)

    def peak_memory(self):
        """GB: of the GPU, or of this process."""
        if self.type == 'cuda':
            return torch.cuda.max_memory_allocated() / 1e9
        import resource
        unit = 1 if sys.platform == 'darwin' else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9

class Clock:
    """Milliseconds per phase of a step; on CUDA by events, so that nothing waits."""
    def __init__(self, cuda):
        self.cuda, self.marks = cuda, []

    def mark(self, phase):
        """What follows, up to the next mark, is this phase."""
        now = torch.cuda.Event(enable_timing=True) if self.cuda else time.perf_counter()
        if self.cuda:
            now.record()
        self.marks.append((phase, now))

    def read(self):
        """Sums per phase since the last call; 0 for others."""
        self.mark('')
        if self.cuda:
            torch.cuda.synchronize()
        total, marks, self.marks = Counter(), self.marks, []
        for (phase, a), (_, b) in zip(marks, marks[1:]):
            total[phase] += a.elapsed_time(b) if self.cuda else 1e3 * (b - a)
        return total

class Log:
    """What a run tells: one dict, three readers: log.jsonl in a folder, the console, which shows a
    part, and wandb if asked for. Ends with one line if the folder cannot be written."""
    def __init__(self, folder, config):
        self.path, self.folder, self.config = f'{folder}/log.jsonl', folder, config
        self.wandb, self.run = config['wandb_log'], None
        self.write('a', '', self.path)

    def write(self, how, text, path):
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(path, how, encoding='utf-8') as f:
                f.write(text)
        except OSError as e:
            fail(f"cannot write {path}: {e.strerror}; checkpoints are whole; make room, or choose "
                 "another --out_dir=DIR")

    def begin(self, step):
        """Takes out of the file what is later than a step or was torn by a crash."""
        kept, part = '', f'{self.path}.{os.getpid()}.tmp'
        for text in open(self.path, encoding='utf-8', errors='replace'):
            with suppress(ValueError, KeyError, TypeError):
                kept += text if json.loads(text)['step'] < step else ''
        self.write('w', kept, part)
        os.replace(part, self.path)
        with open(f'{self.folder}/config.json', 'w', encoding='utf-8') as f:
            json.dump(self.config, f, indent=1)

    def __call__(self, line, left=None):
        """Writes the line of a step or of an evaluation; left: seconds to the end."""
        self.write('a', json.dumps(line) + '\n', self.path)
        shown = [f"{key.removeprefix('mean_').removeprefix('eval/')} {line[key]:.4g}"
                 for key in SHOWN if line.get(key) is not None]
        shown += [] if left is None else [f"{left:.0f} s left"]
        print(' | '.join([f"step {line['step']:5d}", *shown]), flush=True)
        try:
            if self.wandb:
                import wandb
                self.run = self.run or wandb.init(
                    project=self.config['wandb_project'], config=self.config,
                    name=self.config['wandb_run_name'] or self.folder,
                    settings=wandb.Settings(init_timeout=30))
                self.run.log(line, step=line['step'])
        except Exception as e:      # the first failure is told once, and ends wandb, not the run
            self.wandb = False
            print(f"warning: no wandb ({repr(e)[:80]}); {self.path} has everything")

    def end(self):
        with suppress(Exception):               # of wandb, which may not be there
            self.run.finish()
