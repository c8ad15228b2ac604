"""What surrounds a run: the networks that it needs, its folder, the console, and what its numbers
mean.

A folder has config.json (the knobs and the words of the command), log.jsonl (the numbers of each
step and evaluation), samples.jsonl (completions), and ckpt.pt. Of several ranks only the first
writes."""
import collections
import json
import math
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import filelock
import torch
import torch.distributed as dist

from configurator import call, near
from model import RANK, save_network
from tasks import path_of

# numbers of log.jsonl alone
QUIET = ('loss', 'clip_frac', 'grad_norm', 'lr')

# sizes: P prompts | k completions of each: N texts of T tokens | M sampled tokens


def open_networks(names, dataset, device, load_network):
    """Return a tokenizer and {name: network} of names {name: checkpoint, folder of a run, or
    recipe}. A recipe is a config file of pretrain.py, which makes its network,
    out/RECIPE-DATASET.pt, if there is none, or if the recipe or the dataset is newer."""
    paths = {}
    processes = {}
    for path in names.values():
        if not os.path.exists(path):
            similar = near(path, map(str, Path(path).parent.glob('*')))
            sys.exit(f"there is no network {path}; similar: {similar}")
    for name, path in names.items():
        if Path(path, 'ckpt.pt').exists():
            path = f'{path}/ckpt.pt'
        if path.endswith('.py'):
            recipe = path
            path = f"{recipe.removeprefix('config/networks/')[:-3]}-{dataset}.pt"
            path = 'out/' + path.replace('/', '_')
            edited = max(os.path.getmtime(recipe), os.path.getmtime(path_of(dataset)))
            is_there = os.path.exists(path) and os.path.getmtime(path) > edited
            if not is_there and path not in processes and RANK == 0:
                command = ['pretrain.py', f'--dataset={dataset}', recipe, f'--out={path}']
                print('$ python', *command, flush=True)
                # (side by side, and none of them is a rank of this run)
                processes[path] = subprocess.Popen(
                    [sys.executable, *command], env=os.environ | {'RANK': '0', 'WORLD_SIZE': '1'})
        paths[name] = path
    if any([process.wait() for process in processes.values()]):
        sys.exit(1)                             # it has said why
    if dist.is_initialized():                   # other ranks wait for the first one
        dist.barrier()
    for path in paths.values():
        assert os.path.isdir(path) or zipfile.is_zipfile(path), f"{path} is no checkpoint"
    loaded = {name: load_network(path, device) for name, path in paths.items()}
    toks = [tok for _, tok, _ in loaded.values()]
    assert all(tok.vocabulary == toks[0].vocabulary for tok in toks), (
        f"{', '.join(paths.values())}: expected networks of one vocabulary")
    return toks[0], {name: network for name, (network, _, _) in loaded.items()}


# ---- the folder ----------------------------------------------------------------------------------


class RunFolder:
    """A new run moves an older one that has a checkpoint out of its way. A resumed run cuts off
    what the logs say of steps after the checkpoint, because it takes them again."""

    def __init__(self, path, config, resume, wandb_project):
        self.path = path = Path(path)           # (out-grpo/ is out-grpo)
        self.config = config | {'files': [word for word in sys.argv[1:] if word[0] != '-']}
        self.resume = resume and Path(path, 'ckpt.pt').exists()
        self.is_first = RANK == 0
        self.wandb = None
        if not self.is_first:
            return
        if resume and not self.resume:
            print(f'there is no {path}/ckpt.pt, so the run begins at its first step')
        for name in ('generator', 'judge', 'reference', 'dataset'):
            assert not Path(config[name] or '.').resolve().is_relative_to(self.path.resolve()), (
                f"{name} = {config[name]} is in out_dir: choose another out_dir")
        self.lock = filelock.FileLock(f'{path.resolve()}.lock')         # it ends with the process
        try:
            self.lock.acquire(timeout=0)
        except filelock.Timeout:
            sys.exit(f"another run is writing to {path}: choose another --out_dir")
        is_used = self.path.exists() and any(self.path.iterdir())
        assert not is_used or list(self.path.glob('log.jsonl')) + list(self.path.glob('ckpt.pt')), (
            f"out_dir = {path} is no folder of a run, and holds something else")
        if Path(path, 'ckpt.pt').exists() and not resume:
            number = 1
            while Path(f'{path}-{number}').exists():
                number += 1
            self.path.rename(f'{path}-{number}')
            print(f'{path} held another run, which is now in {path}-{number}')
        self.path.mkdir(parents=True, exist_ok=True)
        if wandb_project:
            import wandb
            self.wandb = wandb.init(project=wandb_project, name=self.path.name, config=config)

    def load(self, policy, optimizers):
        """Return the dict of the checkpoint of a resumed run, whose weights and moments are loaded;
        {} of a new run, or of one that was killed before it had a checkpoint."""
        checkpoint = {}
        if self.resume:
            checkpoint = torch.load(self.path / 'ckpt.pt', map_location=policy.device,
                                    weights_only=True)
            for name, value in self.config.items():
                before = checkpoint['config'].get(name)
                assert before == value or name != 'optimizer', (
                    f"{name}: a resumed run expects {before!r}, as before")
                if before != value and name != 'resume' and self.is_first:
                    print(f"resumed with another {name}: {value!r}, not {before!r}")
            assert checkpoint['step'] <= self.config['max_iters'], (
                f"{self.path} has taken {checkpoint['step']} steps: expected a larger max_iters")
            states = checkpoint['state']
            checkpoint['state'] = states[RANK % len(states)]
            policy.load_state_dict(checkpoint['model'])
            for optimizer, moments in zip(optimizers, checkpoint['optimizers']):
                optimizer.load_state_dict(moments)
        if self.is_first:
            self.log_file = self.open('log.jsonl', checkpoint)
            self.samples_file = self.open('samples.jsonl', checkpoint)
            words = {'words': sys.argv[1:]}
            (self.path / 'config.json').write_text(json.dumps(self.config | words, indent=1))
        return checkpoint

    def open(self, name, checkpoint):
        """Return a log to write to, without the lines that will come again."""
        file = open(self.path / name, 'a')
        lines = (self.path / name).read_text().splitlines(True) if checkpoint else []
        # (a kill can have cut the last line)
        file.truncate(sum(len(line) for line in lines if line.endswith('\n')
                          and json.loads(line)['step'] < checkpoint['step']))
        return file

    def save(self, policy, tok, optimizers, state, **more):
        states = [state]
        if dist.is_initialized():               # each rank has its own
            states *= dist.get_world_size()
            dist.all_gather_object(states, state)
        if self.is_first:
            save_network(self.path / 'ckpt.pt', policy, tok, config=self.config, state=states,
                         optimizers=[optimizer.state_dict() for optimizer in optimizers], **more)
        if dist.is_initialized():               # no rank goes on, or ends, before it is written
            dist.barrier()

    def log(self, step, numbers, to_console):
        """Write a line to log.jsonl; and to the console, without the QUIET ones."""
        if not self.is_first:
            return
        bad = [name for name, x in numbers.items() if not math.isfinite(x)]
        assert not bad, f"step {step}: not finite, so the run ends: {', '.join(bad)}"
        print(json.dumps({'step': step} | numbers), file=self.log_file, flush=True)
        if self.wandb:
            self.wandb.log({'step': step} | numbers)
        if to_console:
            # The sum of several rewards hides its parts; that of one is the reward itself.
            parts = [*self.config['rewards']]
            quiet = QUIET if len(parts) != 1 else (*QUIET, f'mean_{parts[0]}', f'eval/{parts[0]}')
            watched = {'verify', *parts} - numbers.keys()
            names = [name for name in numbers if name not in quiet and (
                '/' not in name or name[:5] == 'eval/' and name[5:] in watched)]
            print(f'step {step:5}', *[f'| {name} {numbers[name]:.3f}' for name in names],
                  flush=True)

    def show(self, step, r, columns, scores, chosen, logp=None):
        """Write the completions of the chosen prompts to samples.jsonl; the first group of a run,
        which has an advantage, to the console."""
        if not self.is_first:
            return
        samples = samples_of(r, columns, scores, chosen, logp)
        for sample in samples:
            print(json.dumps({'step': step} | sample), file=self.samples_file, flush=True)
        if step == 0 and logp is not None:
            names = [*samples[0]['scores']]     # a single reward is the sum itself
            show_group('', samples, names if len(names) > 3 else ('reward', 'advantage'))

    def advise(self, is_over):
        """Print what the numbers of the run mean so far."""
        if self.is_first:
            with open(self.path / 'log.jsonl') as file:
                for line in advice(list(map(json.loads, file)), self.config, is_over):
                    print(line)


class Stop:
    """number is that of a signal, Ctrl-C or SIGTERM, which lets the step end. The second one ends
    the process at once. If the step waits for a function of the user, this one is named."""
    number = 0

    def __init__(self):
        signal.signal(signal.SIGINT, self)
        signal.signal(signal.SIGTERM, self)

    def __call__(self, number, frame):
        self.number = number
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        where, code = '', None
        while frame:
            if frame.f_code is call.__code__ and code:          # code: what it has called
                where = f', which waits for {code.co_name}() of {code.co_filename}'
            code, frame = frame.f_code, frame.f_back
        text = (f'\nstopping after this step{where}; the same command with --resume=True goes on; '
                'once more to stop at once\n')
        os.write(2, text.encode())


# ---- completions, to read ------------------------------------------------------------------------


def samples_of(r, columns, scores, chosen, logp=None):
    """Return the completions of the chosen prompts of a Rollout, k dicts for each: 'prompt',
    'completion', 'scores' {name: number}, and 'pieces', a list for each token: its text; and if it
    was sampled its turn (0: from left to right) and, if logp (M, 2) is there, its log-probabilities
    before and after the step."""
    tok = r.prompts.task.tok
    has_passes = bool((r.views == tok.blank).any())
    table = torch.stack((r.n, r.t, r.view), 1)
    if logp is not None:
        table = torch.cat((table, logp), 1)
    samples = []
    for n in [b * r.k + j for b in chosen for j in range(r.k)]:
        rows = table[r.n == n].tolist()
        views = [*dict.fromkeys(row[2] for row in rows)]        # a turn is a pass that fills some
        tokens = {t: [views.index(i) + has_passes, *numbers] for _, t, i, *numbers in rows}
        start = 0 if has_passes else int(r.prompts.start[n // r.k])
        # (Behind bos decode() shows an eos.)
        pieces = [[tok.decode([id, tok.bos]), *tokens.get(t, [])]
                  for t, id in enumerate(r.sequences[n].tolist()) if t >= start and id != tok.pad]
        samples.append({'prompt': columns['prompt'][n], 'completion': columns['completion'][n],
                        'scores': {name: x.flatten()[n].item() for name, x in scores.items()},
                        'pieces': pieces})
    return samples


def show_group(label, samples, names):
    """Print the different completions of a prompt and their scores, the best first; of more than
    six the best and the worst. Below a text stand the turns in which its blanks were filled (a:
    10), if there were several, or dots below what the policy wrote, if a world wrote the rest."""
    count = collections.Counter()
    for sample in samples:
        letters = ''
        for text, *numbers in sample['pieces']:
            i = min(numbers[0], 35) + 1 if numbers else 0
            letters += ' .123456789abcdefghijklmnopqrstuvwxyz'[i] * len(text)
        scores = tuple(sample['scores'][name] for name in names)
        count[scores, sample['completion'], letters.rstrip()] += 1
    print(f"{label:12}{''.join(f'{name:>11.10}' for name in names)}   {samples[0]['prompt']!r}")
    rows = sorted(count, reverse=True)
    for scores, text, letters in rows[:3] + rows[3:][-3:]:
        line = f"{count[scores, text, letters]:10} x{''.join(f'{x:11.3f}' for x in scores)}   "
        print(f'{line}{text!r}')
        if letters.strip('1 ') and set(letters) != {'.'}:
            print(f"{'':{len(line)}} {letters}")


# ---- what the numbers mean -----------------------------------------------------------------------


def advice(lines, config, is_over):
    """Return sentences, from the lines of log.jsonl: after the first step what can be expected; at
    the end one line of what would help, and whether the run is above the line to beat."""
    evals = [line for line in lines if 'line to beat' in line]
    steps = [line for line in lines if 'ms' in line]
    if not steps:
        return []
    goal = 'reward' if 'reward' in evals[-1] else 'verify'
    evals = [line for line in evals if goal in line]    # (a resumed run can have other rewards)
    first, last = evals[0], evals[-1]
    step = steps[-1] if is_over else steps[0]
    dead = ("nine of ten groups teach nothing, because their rewards are equal (mean "
            f"{step['mean_reward']:.3f}): take easier or harder prompts, or pretrain more; or does "
            "the reward give equal numbers?")
    if not is_over:
        is_alike = abs(step['mean_tokens'] / first['eval/tokens'] - 1) < 0.2
        if step['dead_groups'] > 0.9:
            return [dead]
        if is_alike and step.get('mean_verify', 0) > first.get('eval/verify', 1) + 0.25:
            return [f"the generator has memorised: {step['mean_verify']:.0%} of the samples are "
                    f"right for its own texts, {first['eval/verify']:.0%} for others: more texts"]
        return []
    score = [line[goal] for line in evals]
    above, noise = last['above it'], 2 * last['standard error']
    rise = score[-1] - score[(len(score) - 1) * 2 // 3]         # in the last third
    entropy = [line['entropy'] for line in steps if line['entropy'] > 0]        # 0: nothing learned
    right = [line.get('eval/verify', 1) for line in evals]
    remedy = None
    if above > noise and right[-1] < 0.9 * right[0]:
        remedy = (f"exploited? The reward rose, and verify went {right[0]:.3f} -> {right[-1]:.3f}: "
                  "read the samples; a larger kl_beta, more weight on verify")
    elif len(score) > 2 and rise > max(0.05 * abs(score[-1]), noise / 2):
        remedy = f"the score still rises ({rise:.3f} in the last third): more max_iters"
    elif score[-1] < score[0] - noise:
        remedy = f"the score fell by {score[0] - score[-1]:.3f}: a smaller learning_rate"
    elif above <= noise and step['dead_groups'] > 0.9:
        remedy = dead
    elif above <= noise < last['greedy'] - last['line to beat']:
        remedy = (f"greedy decoding is at {last['greedy']:.3f}, so it has learned, but is not yet "
                  "sure: more max_iters")
    elif entropy and entropy[-1] < 0.05 * entropy[0] and score[-1] < 0.9 and goal == 'verify':
        remedy = f"the entropy fell to {entropy[-1]:.3f}, so little is tried: a larger entropy_coef"
    elif above <= noise and len(score) > 2:
        remedy = ("it has learned little that it did not know: more max_iters, another generator, "
                  "from more texts, or answers with steps")
    where = 'not above' if abs(above) <= noise else 'above' if above > 0 else 'below'
    result = f"{goal} {score[-1]:.3f} is {where} the line to beat: {above:+.3f} +- {noise:.3f}"
    return [remedy, result] if remedy else [result]
