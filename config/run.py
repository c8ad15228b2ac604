"""What surrounds a run: rules of its knobs, device and ranks, exact resume, clock and log."""
import atexit, collections, ctypes, datetime, hashlib, json, os, re, signal, subprocess, sys, time
from contextlib import suppress
import torch, torch.distributed as dist, torch.nn as nn
from config.configurator import fail

RULES = {"blank_kind in ('random', 'span', 'suffix')": '',   # what knobs must fulfil, and why
    "0 <= blank_low <= blank_high <= 1": '', "grad_clip >= 0 and eval_interval >= 0": "0 is off",
    "block_size >= 2 and blank_span >= 1 and batch_size >= 1 and max_iters >= 1": '',
    "0 <= learning_rate < 1e30 and weight_decay >= 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1": '',
    "dtype in ('auto', 'float32', 'bfloat16', 'float64')": '', "seed >= 0": ''}
GRPO_RULES = RULES | {"kl_beta > 0 or not (kl_in_reward or target_kl)": "0 loads no reference",
    "adv_norm in ('none', 'std', 'batch', 'rloo')": '', "mode in ('fill', 'causal')": '',
    "loss_norm in ('token', 'sequence', 'constant')": '', "0 < top_p <= 1 and temperature > 0": '',
    "kl_type in ('exact', 'k1', 'k2', 'k3', 'k3_ratio')": '', "backend in ('', 'gloo', 'nccl')": '',
    "gen_batch_size == 0 or gen_batch_size >= group_size": '', "ratio in ('token', 'sequence')": '',
    "optimizer in ('muon', 'adamw')": '', "top_k >= 0 and judge_batch_size >= 0": "0 is off",
    "kl_beta >= 0 and target_kl >= 0 and entropy_coef >= 0": "0 is off", "log_interval >= 1": '',
    "kl_horizon > 0 and clip_high >= 0 and 0 <= clip_low <= 1": '', "eval_prompts >= 1": '',
    "group_size >= 2": "a group of one is its own mean and teaches nothing",   # world: ranks
    "gradient_accumulation_steps % (mini_batches * world) == 0": "each rank takes an equal share",
    "gradient_accumulation_steps >= 1 and mini_batches >= 1 and inner_updates >= 1": '',
    "rewards and all(type(weight) in (int, float) for weight in rewards.values())": ''}
HARMLESS = set("""out_dir resume log_interval eval_interval eval_prompts save_interval device
    sample_interval wandb_log wandb_project wandb_run_name compile backend gen_batch_size explain
    judge_batch_size generator_recipe judge_recipe benchmark""".split())    # may change on resuming
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
    alone = os.environ | {'RANK': '0', 'WORLD_SIZE': '1'}
    if code := subprocess.call([sys.executable, *command[1:]], env=alone):
        sys.exit(code if code > 0 else 128 - code)

def digest(*nets):
    """A hash of the weights of networks, by which a resumed run knows them again; None: skipped."""
    weights = (p.detach().cpu().view(torch.uint8) for net in nets if net for p in net.parameters())
    return hashlib.sha256(b''.join(w.numpy().tobytes() for w in weights)).hexdigest()[:16]

def resumable(ckpt, config):
    """Ends with one line if a checkpoint's settings are not those of this run."""
    old, longer = ckpt['config'], config['lr_decay_iters'] and ckpt['step'] <= config['max_iters']
    differ = [f"{k} {old.get(k)!r} -> {v!r}" for k, v in config.items() if old.get(k) != v
              and k not in HARMLESS and not (longer and k == 'max_iters')]
    if differ:
        fail(f"{config['out_dir']}/ckpt.pt, at step {ckpt['step']}, was made with other settings: "
             f"{', '.join(differ)}; continue with the old ones, or start anew in another --out_dir")

def quick_products():
    """Lets float32 products of this CPU use another library if that is as exact; says which.
    On AMD 'medium' calls one that is twice as fast, elsewhere it may round to bfloat16. Its error
    (of float32: 3e-7) decides: by stopwatch, the last bits would depend on the machine's load."""
    torch.set_float32_matmul_precision('medium')
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    error = ((a @ b - a.double() @ b.double()).norm() / 256 ** 1.5).item()  # of the norm of a @ b
    torch.set_float32_matmul_precision(taken := 'medium' if error <= 1e-6 else 'highest')
    return f"float32 products '{taken}' (error of 'medium': {error:.0e})"

class Machine:
    """Fails with one line if the device is not there. note: what was chosen, in words."""
    def __init__(self, device, dtype, backend=''):
        self.rank, self.world = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
        have = [name for name in ('cuda', 'mps', 'cpu') if getattr(torch, name).is_available()]
        name = have[0] if device == 'auto' else device
        self.type, self.main, self.stop = name.split(':')[0], self.rank == 0, torch.zeros(2)
        if self.type not in have:
            fail(f"device = {device} is not available; there is {', '.join(have)}, or auto")
        if self.type == 'cuda' and self.world > 1:
            name = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(name)
        can = getattr(torch.cpu, 'get_capabilities', dict)() if self.type == 'cpu' else {}
        fast = self.type == 'cuda' or can.get('avx512_bf16') or can.get('amx_bf16')
        self.dtype = dtype if dtype != 'auto' else 'bfloat16' if fast else 'float32'
        torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
        torch.set_float32_matmul_precision('high')          # TF32 on CUDA
        self.device, self.note = torch.device(name), f"{name}, {self.dtype}"
        if self.type == 'cpu':
            with suppress(Exception):       # glibc: keep freed buffers mapped (options -1, -2, -3);
                for option, size in ((-1, 2 ** 30), (-2, 2 ** 26), (-3, 2 ** 26)):
                    ctypes.CDLL(None).mallopt(option, size)     # page faults cost up to half a step
            self.note += f", {torch.get_num_threads()} threads, {quick_products()}"
        if self.world > 1:      # ranks wait for as long as it takes rank 0 to make what is missing
            dist.init_process_group(backend or ('nccl' if self.type == 'cuda' else 'gloo'),
                                    timeout=datetime.timedelta(hours=9))
            atexit.register(dist.destroy_process_group)         # or gloo aborts at times
            self.note += f", {self.world} ranks"

    def listen(self):
        """From now on the first Ctrl-C or SIGTERM is noted in stop, two numbers: heard by this
        rank, and agreed on by all (whose loop writes that); a second one stops at once."""
        def on_signal(number, frame):
            if self.stop[0]:
                sys.exit(128 + number)
            self.stop[0] = 128 + number
            if self.main:                       # a print here may interrupt another, and fail
                os.write(1, b"\nfinishing this step and saving; once more to stop at once\n")
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
        net.requires_grad_(False).blocks.to(getattr(torch, self.dtype))

    def once(self, make):
        """make(), called by rank 0 first, so that the others find what it made."""
        found = make() if self.main else None
        if self.world > 1:
            dist.barrier()
        return found or make()

    def sum(self, tensor, how='SUM'):
        """Sum (or MAX) over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor, getattr(dist.ReduceOp, how))
        return tensor

    def sum_gradients(self, model):
        """Adds up the gradients of all ranks, in one message."""
        if self.world > 1:
            grads = [p.grad for p in model.parameters()]
            nn.utils.vector_to_parameters(self.sum(nn.utils.parameters_to_vector(grads)), grads)

    def peak_memory(self):
        """GB: of the GPU, or of this process."""
        if self.type == 'cuda':
            return torch.cuda.max_memory_allocated() / 1e9
        from resource import RUSAGE_SELF, getrusage         # not on Windows
        return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024) / 1e9

class Clock:
    """Milliseconds per phase, from its mark() to the next; on CUDA by events: nothing waits."""
    def __init__(self, cuda):
        self.cuda, self.marks = cuda, []

    def mark(self, phase):
        now = torch.cuda.Event(enable_timing=True) if self.cuda else time.perf_counter()
        self.marks += [(phase, torch.cuda.current_stream().record_event(now) if self.cuda else now)]

    def read(self):
        """Sums per phase since the last call; 0 for others."""
        self.mark('')
        if self.cuda:
            torch.cuda.synchronize()
        total, marks, self.marks = collections.Counter(), self.marks, []
        for (phase, a), (_, b) in zip(marks, marks[1:]):
            total[phase] += a.elapsed_time(b) if self.cuda else 1e3 * (b - a)
        return total

class Log:
    """What a run tells: one dict, three readers: log.jsonl in a folder, the console, which shows a
    part, and wandb if asked for. Ends with one line if the folder cannot be written."""
    def __init__(self, folder, config):
        self.path, self.folder, self.config = f'{folder}/log.jsonl', folder, config
        self.run, self.wandb = None, config['wandb_log'] and dict(config=config,
            project=config['wandb_project'], name=config['wandb_run_name'] or folder)
        self.write('')

    def write(self, text):
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(self.path, 'a', encoding='utf-8') as f:
                f.write(text)
        except OSError as e:
            fail(f"cannot write {self.path}: {e.strerror}; checkpoints are whole; make room, or "
                 "choose another --out_dir=DIR")

    def begin(self, step):
        """Cuts off the file what is later than a step or was torn by a crash."""
        with open(self.path, 'rb+') as f, open(f'{self.folder}/config.json', 'w') as knobs:
            json.dump(self.config, knobs, indent=1)
            lines = re.finditer(rb'{"step": (\d+),.*}\n', f.read())
            f.truncate(max((m.end() for m in lines if int(m[1]) < step), default=0))

    def __call__(self, line, left=None):
        """Writes the line of a step or of an evaluation; left: seconds to the end."""
        self.write(json.dumps(line) + '\n')
        shown = [f"{re.sub('mean_|eval/', '', key)} {line[key]:.4g}"
                 for key in SHOWN if line.get(key) is not None]
        shown += [] if left is None else [f"{left:.0f} s left"]
        print(' | '.join([f"step {line['step']:5d}", *shown]), flush=True)
        try:
            if self.wandb:
                import wandb
                self.run = self.run or wandb.init(**self.wandb, settings={'init_timeout': 30})
                self.run.log(line, step=line['step'])
        except Exception as e:      # the first failure is told once, and ends wandb, not the run
            self.wandb = False
            print(f"warning: no wandb ({repr(e)[:80]}); {self.path} has everything")

    def end(self):
        with suppress(Exception):               # of wandb, which may not be there
            self.run.finish()
