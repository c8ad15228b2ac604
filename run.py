"""What surrounds a run: its networks, its folder, and the line to beat. Skip this file at first.

A folder has config.json (the knobs, and the words of the command), log.jsonl (the numbers of each
step and evaluation), samples.jsonl (completions), and ckpt.pt. Only the first of several ranks
writes."""
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import filelock
import torch
import torch.distributed as dist

from configurator import must_exist
from devices import N_RANKS, RANK, means_of, wait_for_ranks
from files import path_of
from model import GPT
from show import print_group
from tasks import Tokenizer

# What the console shows of the log, besides each of several rewards.
CONSOLE = ('verify', 'reward', 'greedy', 'line to beat', 'above it', 'standard error', 'kl',
           'entropy', 'mean_tokens', 'mean_reward', 'dead_groups', 'ms')
PLAIN = {bool, int, float, str, type(None), torch.Tensor}       # types of the leaves of `state`
# What an evaluation depends on. If one of these knobs changes, another line to beat begins.
MEASURED = ('dataset', 'blank_kind', 'blank_low', 'blank_high', 'rewards', 'sources', 'judge',
            'temperature', 'top_k', 'top_p', 'eval_prompts')


# ---- networks ------------------------------------------------------------------------------------
def save_network(path, network, **more):
    """Write a network, with its tokenizer and more, to a checkpoint, which is whole or absent."""
    assert all(weight.isfinite().all() for weight in network.state_dict().values()), (
        f"the weights are not finite, so {path} was not written: is learning_rate too large?")
    temporary = f'{path}.{os.getpid()}.tmp'     # two runs can make one network at the same time
    torch.save({'args': network.args, 'model': network.state_dict(),
                'vocabulary': network.tok.vocabulary, **more}, temporary)
    os.replace(temporary, path)


def is_plain(x):
    """Return whether load_checkpoint() surely reads x again."""
    if type(x) in (list, tuple, dict):
        return all(map(is_plain, [*x, *x.values()] if type(x) is dict else x))
    return type(x) in PLAIN


def load_checkpoint(path):
    """Return the dict of a checkpoint."""
    # weights_only: a checkpoint is somebody's file, and a pickle can run any code.
    try:
        saved = torch.load(path, map_location='cpu', weights_only=True)
        args = saved['args']
    except Exception as e:                      # many kinds, from half a file to another one
        sys.exit(f"{path} is no checkpoint of this project, or not all of it is there "
                 f"({type(e).__name__}); a folder of transformers needs plugins/hf.py")
    if 'causal' in args:                        # an older version has written it
        args['kind'] = 'causal' if args.pop('causal') else 'fill'
    return saved


def load_network(path, device):
    """Return the network of a checkpoint, with its tokenizer, and the dict of the checkpoint."""
    saved = load_checkpoint(path)
    assert 'folder' not in saved['args'], f"{path} is a network of transformers: add plugins/hf.py"
    network = GPT(**saved['args']).to(device)
    # A checkpoint of plugins/passes.py has more weights than a GPT.
    missing, _ = network.load_state_dict(saved['model'], strict=False)
    assert not missing, f"{path} lacks weights: {missing}"
    network.tok = Tokenizer(**saved['vocabulary'])
    return network, saved


def open_networks(paths, dataset, device, load_network, compile=False):
    """Open the networks of paths {name: path}. A path is a checkpoint, the folder of a run, a
    recipe, or '' for None. A recipe is a config file of pretrain.py, which makes a network that is
    missing or stale."""
    assert paths['policy'], "generator = '': expected a network"
    files = {name: file_of(must_exist(path, 'network'), dataset)
             for name, path in paths.items() if path}
    recipes = {files[name]: path for name, path in paths.items() if path.endswith('.py')}
    n_threads = max(1, torch.get_num_threads() // len({*files.values()}))   # of each network
    words = [f'--dataset={dataset}', f'--device={device.type}']
    processes = [start_pretraining([*words, path, f'--out={out}'], n_threads)
                 for out, path in recipes.items()
                 if RANK == 0 and is_stale(out, path)]
    if any([process.wait() for process in processes]):
        sys.exit(1)                             # pretrain.py has said why
    wait_for_ranks()                            # for the first rank, which has made networks
    networks = {name: load_network(path, device)[0] for name, path in files.items()}
    for name, network in networks.items():
        assert network.tok.vocabulary == networks['policy'].tok.vocabulary, (
            f"{files[name]}: expected the vocabulary of {files['policy']}")
        if name != 'policy':                    # it learns what load_network() has not frozen
            network.requires_grad_(False)
        if compile:
            network.trunk = torch.compile(network.trunk)
    return SimpleNamespace(**dict.fromkeys(paths) | networks)


def file_of(path, dataset):
    """Return the file or folder that has the weights of a network. What a recipe makes is
    out/RECIPE-DATASET.pt."""
    if path.endswith('.py'):
        name = f"{path.removeprefix('config/networks/')[:-3]}-{dataset}"
        return f"out/{quote(name, safe='')}.pt"             # '/' is quoted
    return f'{path}/ckpt.pt' if os.path.exists(f'{path}/ckpt.pt') else path


def is_stale(path, recipe):
    """Return whether a network is not there, or is older than its recipe, than a file that the
    recipe includes, or than its dataset."""
    if not os.path.exists(path):
        return True
    saved = load_checkpoint(path)
    sources = [recipe, path_of(saved['dataset']), *saved.get('files', ())]
    changed = [os.path.getmtime(file) for file in sources if os.path.exists(file)]
    return os.path.getmtime(path) <= max(changed)


def sum_of_weights(network):
    """Return a number, as text, that changes with the weights of a network."""
    weights = getattr(network, 'parameters', list)()
    return f'{sum(float(p.cpu().double().abs().sum()) for p in weights):.9g}'


def start_pretraining(words, n_threads):
    """Start the pretraining of a recipe. Return its process, which is no rank of this run."""
    print('$ python pretrain.py', *words, flush=True)
    return subprocess.Popen([sys.executable, 'pretrain.py', *words],
                            env=os.environ | {'RANK': '0', 'WORLD_SIZE': '1',
                                              'OMP_NUM_THREADS': str(n_threads)})


# ---- the folder ----------------------------------------------------------------------------------
class RunFolder:
    """The folder of a run. A new run moves an older one that has a checkpoint out of its way. A
    resumed run takes the steps after its checkpoint again, and cuts them from its logs."""

    def __init__(self, path, config):
        self.path = Path(path).resolve()        # a reward may change the folder of the process
        self.config = config
        # The console shows the parts of several rewards, because their sum hides them.
        self.parts = config['rewards'] if len(config['rewards']) > 1 else {}
        self.saved = {}                         # the checkpoint of a resumed run
        if RANK == 0:
            self.prepare()
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

    def prepare(self):
        """Lock the folder, and check that it is a run's, or empty."""
        path = self.path
        for name in ('generator', 'judge', 'reference'):
            file = file_of(self.config[name], self.config['dataset'])
            assert not Path(file).resolve().is_relative_to(path), (
                f"{name} = {file} is in out_dir: choose another out_dir")
        self.lock = filelock.FileLock(f'{path}.lock', timeout=0)    # it ends with the process
        try:
            self.lock.acquire()
            for below in path.rglob('*.lock'):          # of runs in folders below
                with filelock.FileLock(below, timeout=0):
                    pass
        except filelock.Timeout as e:
            sys.exit(f"another run is writing to {e.lock_file[:-5]}: choose another --out_dir")
        config = path / 'config.json'
        is_run = config.exists() and b'"words"' in config.read_bytes()
        assert is_run or not any(path.glob('*')), (
            f"out_dir = {path} is no folder of a run, and holds something else")

    def load(self, networks, optimizers, measured):
        """Load the weights and moments of a resumed run, say what has changed, and begin the logs.
        Return its step, and its line to beat, or None if one of the measured knobs has changed."""
        saved, config, line = self.saved, self.config, None
        policy = networks.policy
        config['sources'] |= {name: sum_of_weights(network) for name, network in
                              vars(networks).items() if name != 'policy'}
        if saved:
            try:
                assert saved['vocabulary'] == policy.tok.vocabulary
                assert saved['args'].get('kind') == policy.args.get('kind')
                policy.load_state_dict(saved['model'])
                for optimizer, moments in zip(optimizers, saved['optimizers'], strict=True):
                    optimizer.load_state_dict(moments)
            except (AssertionError, KeyError, RuntimeError, ValueError):
                before = saved.get('config', config)
                names = sorted((config | before).keys() - {'resume', 'sources'})
                changed = [x for x in names if config.get(x) != before.get(x)]
                sys.exit(f"{self.path}/ckpt.pt has another network, or is of an older version: a "
                         "resumed run keeps the kind, the size and the vocabulary of its "
                         "generator, its frozen weights, a learned order, and the optimizer; "
                         f"other knobs: {', '.join(changed) or 'none'}")
            assert saved['step'] <= config['max_iters'], (
                f"{self.path} has taken {saved['step']} steps: expected a larger max_iters")
            line = saved['line']
            before = saved['config']            # it may have knobs of a plugin that is gone
            for name in sorted((config | before).keys() - {'resume'}):
                old, new = before.get(name), config.get(name)
                if old == new:
                    continue
                if name == 'sources':
                    changed = [x for x in old | new if old.get(x) != new.get(x)]
                    self.say(f"resumed with another file, or network: {', '.join(changed)}")
                    if changed == ['reference']:            # an evaluation does without it
                        continue
                else:
                    self.say(f'resumed with another {name}: {new}, not {old}')
                if name in measured or name not in config:
                    line = None
            if line is None:
                self.say('so a new line to beat begins at the next evaluation')
            if len(saved['state']) != N_RANKS and any(saved['state']):
                self.say(f"resumed with {N_RANKS} ranks, not {len(saved['state'])}: each takes the "
                         "`state` of an earlier rank; with fewer ranks some is lost")
        if RANK == 0:                           # last: a run that is refused changes no log
            self.begin_logs()
        return saved.get('step', 0), line

    def begin_logs(self):
        """Move an older run out of the way. Write the knobs. Cut the logs of a resumed run."""
        path, config = self.path, self.config
        if (path / 'ckpt.pt').exists() and not self.saved:
            number = 1
            while Path(f'{path}-{number}').exists():
                number += 1
            older = path.rename(f'{path}-{number}')
            print(f'{path.name} held another run, which is now in {older.name}')
        path.mkdir(parents=True, exist_ok=True)
        for temporary in path.glob('*.tmp'):    # of a run that was killed
            temporary.unlink()
        step = self.saved.get('step', 0)
        for name in ('samples.jsonl', 'log.jsonl'):
            with open(path / name, 'ab+') as file:
                file.seek(0)                    # the last line may be half a line
                kept = [x for x in file if x.endswith(b'\n') and json.loads(x)['step'] < step]
                file.truncate(len(b''.join(kept)))
        (path / 'config.json').write_text(
            json.dumps(config | {'words': sys.argv[1:]}, indent=1))
        self.wandb = None
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
        if RANK > 0:
            return
        assert all(map(math.isfinite, numbers.values())), f"step {step}: not finite: {numbers}"
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
    the run saves itself. The second one ends the run, with a traceback that shows what hangs."""
    is_asked = False

    def __init__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)

    def __call__(self, number, frame):
        if self.is_asked:
            raise KeyboardInterrupt('stopped at once')
        self.is_asked = True
        # print() could be what was interrupted.
        os.write(2, b'\nstopping after this step; the same command with --resume=True goes on; '
                    b'once more to stop at once\n')


# ---- what the numbers mean -----------------------------------------------------------------------
def shown_of(numbers, parts=()):
    """Return what the console shows of numbers. parts: names of rewards to show as well."""
    shown = ''
    for name, x in numbers.items():
        if name in CONSOLE or name.removeprefix('mean_').removeprefix('eval/') in parts:
            shown += f' | {name} {x:.3f}'
    return shown


def against_line(scores, greedy, line, rewards):
    """Compare the scores of an evaluation, {name: (P, 4)}, with the line to beat (P,), or begin a
    line. Return the line, and numbers. The goal is 'verify'; or 'reward', if a config file has
    brought a reward, or if there is no verify()."""
    goal = 'verify' if 'verify' in scores and rewards.keys() <= {'judge', 'verify'} else 'reward'
    now, likeliest = scores[goal].mean(1), greedy[goal].mean(1)                 # (P,)
    if line is None:
        # A policy that only samples its favourites more often ends at its greedy score. On the
        # way it can pass both by a few points, so a small gain above the line proves little.
        line = max(now, likeliest, key=torch.mean)
    above = now - line          # prompt by prompt: how hard they are has no part in the error
    numbers = {goal: now, 'greedy': likeliest, 'line to beat': line, 'above it': above,
               'standard error': above.std() / len(above) ** 0.5}
    if 'verify' in scores:
        numbers['eval/pass@4'] = (scores['verify'] == 1).any(1).double()
    return line, means_of(numbers) | means_of(scores, 'eval/') | means_of(greedy, 'greedy/')


def means_of_step(scores, rewards):
    """Return the means of the scores of a step, and the share of groups that teach nothing."""
    means = {f'mean_{name}': scores[name] for name in ('tokens', 'reward', *rewards)}
    return means_of(means | {'dead_groups': (scores['advantage'] == 0).all(1).double()})


def warning_of(numbers, result):
    """Return what the first step and the first evaluation warn of, a sentence or ''."""
    is_as_long = abs(numbers['mean_tokens'] / result['eval/tokens'] - 1) < 0.2
    if is_as_long and numbers.get('mean_verify', 0) > result.get('eval/verify', 1) + 0.25:
        return (f"the generator has memorised: {numbers['mean_verify']:.0%} of the samples are "
                f"right for its own texts, {result['eval/verify']:.0%} for others: more texts")
    if numbers['dead_groups'] > 0.9:
        return ("nine of ten groups teach nothing, because their advantages are 0 (mean reward "
                f"{numbers['mean_reward']:.3f}): try easier or harder prompts, or pretrain longer; "
                "look first whether the reward gives different numbers")
    return ''


def verdict_of(result, n, path):
    """Return where the last evaluation, of n prompts, stands, and how to learn more."""
    goal, score = next(iter(result.items()))    # the first of against_line()
    above, error = result['above it'], result['standard error']
    if n < 4 or error == 0:
        return f"{goal} {score:.3f}: nothing can be told from {n} prompts, or from equal ones"
    margin = (2 + 4 / (n - 1)) * error          # a little more than Student's quantile of 95 %
    where = 'not above' if abs(above) <= margin else 'above' if above > 0 else 'below'
    return (f"{goal} {score:.3f} is {where} the line to beat: {above:+.3f} +- {margin:.3f}\n"
            f"what would help: python -m extras.advice {path}")
