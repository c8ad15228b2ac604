"""Look at a run: the same blanks before and after GRPO, with scores; and its curves.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py --out_dir=out-grpo,out-other --curves=True"""
import sys
from collections import Counter
from dataclasses import replace

from common import (at_least, autocast, between, configure, digest_of, fail, init_device, new_file,
                    read_json, read_json_lines)

import torch

from data.dataset import Dataset, draw_prompts, draws, print_group, row_text
from judge import Scorer, load_judge
from model import complete, default_recipe, ensure_checkpoint, load_checkpoint, load_gpt

# knobs
out_dir = 'out-grpo'        # folder of a run; with --curves=True also several: A,B
checkpoint = 'ckpt.pt'      # in that folder: 'ckpt.pt', the last, or 'best.pt'
prompt = ''                 # one of your own: '_' is a blank; causal: what to continue
num_samples = 10            # held-out prompts to show
k = 0                       # > 0: list so many completions of one prompt, with counts
argmax = False              # True: show the likeliest completion; False: sampled ones
temperature = 0.0           # of samples; 0: the run's own, here and in the next two
top_k = 0                   # sample from the k likeliest ids
top_p = 0.0                 # sample from the fewest ids with this mass
n_fill_steps = 0            # passes over a row, of reference and policy; 0: the run's own
curves = False              # True: draw out_dir/curves.png (of several: compare.png in the first)
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
seed = 0                    # of prompts, blanks and samples; 0: those of the run's evaluation
# letters: B prompts | k completions of each | T positions


def check_knobs():
    """Ends with one line if a knob has a value that cannot be meant."""
    at_least(1, num_samples=num_samples)
    at_least(0, k=k, top_k=top_k, n_fill_steps=n_fill_steps, seed=seed)
    if temperature != 0:
        at_least(1e-6, temperature=temperature)
    between(0, 1, top_p=top_p)


# ---- completions, before and after ---------------------------------------------------------------


def read_prompt(text, tok, unit, c):
    """Tokens (1, T) and mask (1, T) of a prompt that the user wrote. c: the knobs of the run."""
    causal = c['mode'] == 'causal'
    T = c['block_size']
    try:
        ids = tok.encode(text, blanks=True)
    except ValueError as e:
        fail(f"--prompt={text!r}: {e}")
    longest = T - 1 if causal else T
    if not 1 <= len(ids) <= longest:
        fail(f"--prompt={text!r}: {len(ids)} symbols; expected 1 to {longest}")
    if not causal and tok.mask not in ids:
        fail(f"--prompt={text!r}: there is nothing to fill; write '_' for a blank")
    if causal:
        ids += [tok.mask] * (c['max_new_tokens'] or T)
    elif unit == 'rows':
        ids += [tok.eos]
    row = (ids + [tok.pad] * T)[:T]
    tokens = torch.tensor([row])
    return tokens, tokens == tok.mask


def sampling_knobs(c):
    """Arguments of complete(): the run's knobs, or what was asked for here."""
    return {'temperature': temperature or c['temperature'], 'top_k': top_k or c['top_k'],
            'top_p': top_p or c['top_p'], 'n_fill_steps': n_fill_steps or c['n_fill_steps'],
            'fill_order': c['fill_order']}


def complete_and_score(model, prompts, greedy, c, scorer, names):
    """Completions (B, k, T) of all prompts, on the CPU, and their scores {name: (B, k)}."""
    rows = []
    scores = {name: [] for name in names}
    for part in prompts.split(c['batch_size']):
        with autocast(model.device, c['dtype']):
            r = complete(model, part, greedy, **sampling_knobs(c))
            found = scorer.score(names, r)
        rows.append(r.rows.view(len(part), -1, c['block_size']).cpu())
        for name in names:
            scores[name].append(found[name].cpu())
    return torch.cat(rows), {name: torch.cat(parts) for name, parts in scores.items()}


def print_passes(label, model, prompts, c, tok):
    """What stood in the completions of one prompt after each pass, and how often: from the second
    pass on, blanks fit what was written before."""
    with autocast(model.device, c['dtype']):
        r = complete(model, prompts, **sampling_knobs(c))
    rows = r.rows.cpu()                                             # (k, T)
    turn = r.turn.cpu()                                             # (k, T)
    for t in range(int(turn.max()) + 1):
        print(f'{label}, after pass {t + 1}')
        states = Counter(tuple(row) for row in rows.masked_fill(turn > t, tok.mask).tolist())
        for state, count in sorted(states.items()):
            print(f'{count:7} x   {row_text(tok, torch.tensor(state), prompts.mask[0])}')


def compare(reference, policy, prompts, greedy, c, scorer, names, shown):
    """Prints the first `shown` prompts with their completions by reference and policy, from the
    same random numbers, and the mean scores over all."""
    before = complete_and_score(reference, prompts, greedy, c, scorer, names)
    after = complete_and_score(policy, prompts, greedy, c, scorer, names)
    columns = [name for name in names if name != 'distinct']        # that one is about the group
    for b in range(min(shown, len(prompts))):
        listed = k or 1
        for label, (rows, scores) in (('reference', before), ('policy', after)):
            print_group(scorer.data.tok, prompts.tokens[b], prompts.mask[b], rows[b, :listed],
                        label, {name: scores[name][b, :listed] for name in columns or names})
    means = []
    for name in names:
        means.append(f"{name} {before[1][name].mean():.3f} -> {after[1][name].mean():.3f}")
    how = 'likeliest' if greedy else 'sampled'
    print(f"{how}, mean over {len(prompts)} prompt(s):   " + '   '.join(means))


# ---- curves --------------------------------------------------------------------------------------

# Panels: a title, and keys of the log with their styles. Of several runs the last key is drawn.
PANELS = {
    'verify, held-out': {'eval/ref_verify': 'C7', 'eval/ref_verify_argmax': 'C7--',
                         'eval/verify_argmax': 'C0--', 'eval/verify': 'C0'},
    'reward': {'mean_reward': 'C9', 'eval/reward': 'C0'},
    'KL to the reference, nats per choice': {'mean_kl': 'C9', 'eval/kl': 'C0'},
    'entropy, nats per choice': {'entropy': 'C9', 'eval/distinct': 'C1', 'eval/entropy': 'C0'},
}


def points(log, key):
    """Steps and values of a key of the log, two lists."""
    lines = [line for line in log if line.get(key) is not None]
    return [line['step'] for line in lines], [line[key] for line in lines]


def draw_one(axes, folder, log):
    """Draws the curves of one run, all keys."""
    for ax, (title, styles) in zip(axes, PANELS.items()):
        for key, style in styles.items():
            steps, values = points(log, key)
            ax.plot(steps, values, style, label=key)
        ax.set_title(title, loc='left')
        ax.legend(frameon=False)


def draw_several(axes, logs):
    """Draws of several runs {folder: log} what they did on held-out prompts."""
    for ax, (title, styles) in zip(axes, PANELS.items()):
        key = list(styles)[-1]
        for i, (folder, log) in enumerate(logs.items()):
            steps, values = points(log, key)
            _, deviations = points(log, 'std_reward')
            if key == 'eval/reward' and any(deviations[:1]):
                # Judges differ in scale: the gain, in standard deviations of the first step.
                values = [(value - values[0]) / deviations[0] for value in values]
            ax.plot(steps, values, f'C{i}', label=folder)
        ax.set_title(f'{title}, gain in std' if key == 'eval/reward' else title, loc='left')
    axes[-1].legend(frameon=False)              # one legend serves all panels


def draw_curves(folders):
    """Draws the log of a run, or of several beside each other, as a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        fail(f"no curves: {e}; pip install matplotlib")
    logs = {folder: read_json_lines(f'{folder}/log.jsonl') for folder in folders}
    figure = Figure(figsize=(10, 6.4), layout='constrained')
    axes = figure.subplots(2, 2, sharex=True).flatten()
    if len(folders) == 1:
        draw_one(axes, folders[0], logs[folders[0]])
        path = f'{folders[0]}/curves.png'
    else:
        draw_several(axes, logs)
        path = f'{folders[0]}/compare.png'
    figure.supxlabel('step')
    with new_file(path) as file:
        figure.savefig(file, dpi=120)
    print(f"wrote {path}")


if __name__ == "__main__":
    configure(globals(), quiet=True)
    check_knobs()
    if curves:
        draw_curves(out_dir.split(','))
        sys.exit()

    # The run: its knobs, corpus, judge, and the two networks.
    make = f"python train_grpo.py config/grpo_config.py --out_dir={out_dir}"
    data = Dataset(read_json(f'{out_dir}/config.json', {'dataset': str}, make)['dataset'])
    make = f"python train_grpo.py --out_dir={out_dir}, with the config files of that run"
    run = load_checkpoint(f'{out_dir}/{checkpoint}', 'policy', data, make)
    c = run['config']                           # the run's knobs
    between(0, c['block_size'], n_fill_steps=n_fill_steps)
    if n_fill_steps > 1 and c['mode'] == 'causal':
        fail(f"n_fill_steps = {n_fill_steps}: {out_dir} writes from left to right, token by token")
    torch_device, _ = init_device(device, c['dtype'])
    policy = load_gpt(f'{out_dir}/{checkpoint}', data, make, c['block_size'], c['mode'],
                      torch_device)
    reference_path = c['reference_checkpoint'] or run['start']
    of_run = {name: c[name] for name in ('dataset', 'mode', 'block_size')}
    _, make = ensure_checkpoint(reference_path, 'model.py',
                                c['generator_recipe'] or default_recipe('generator', data),
                                **of_run)
    reference = load_gpt(reference_path, data, make, c['block_size'], c['mode'], torch_device)
    scorer = Scorer(data)
    names = []
    if run['judge']:
        _, make = ensure_checkpoint(run['judge'], 'judge.py',
                                    c['judge_recipe'] or default_recipe('judge', data), **of_run)
        scorer.judge = load_judge(run['judge'], data, make, c['block_size'], torch_device)
        names.append('judge')
    if digest_of(reference, scorer.judge) != c['reference_and_judge']:
        fail(f"{reference_path} or {run['judge'] or 'the judge'} is not the one that {out_dir} was "
             "made with; bring the old one back, or start that run anew")
    if data.verify:
        names.append('verify')
    names.append('distinct')

    # The prompts: those of the run's evaluation, or one of the user's own.
    prompts = draw_prompts(
        data, 'val', c['eval_prompts'], max(k, c['group_size'], 4),
        draws(seed, 'eval'), block_size=c['block_size'], mode=c['mode'],
        blank_kind=c['blank_kind'], blank_low=c['blank_low'], blank_high=c['blank_high'],
        blank_span=c['blank_span'], max_new_tokens=c['max_new_tokens'])
    if prompt or '--prompt=' in sys.argv:
        tokens, mask = read_prompt(prompt, data.tok, data.meta['unit'], c)
        prompts = replace(prompts[:1], tokens=tokens, mask=mask)
    if k > 0:
        prompts = prompts[:1]
    if len(prompts) == 1 and sampling_knobs(c)['n_fill_steps'] > 1:
        for label, model in (('reference', reference), ('policy', policy)):
            print_passes(label, model, prompts.for_k(k or 4), c, data.tok)
    for greedy in (False, True):
        shown = num_samples if greedy == argmax else 0
        compare(reference, policy, prompts.for_k(k or 4), greedy, c, scorer, names, shown)
