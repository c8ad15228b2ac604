"""Look at a run: the same blanks before and after GRPO, with scores; and its curves.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py --out_dir=out-grpo,out-other --curves=True"""
import json
import os
import shutil
import sys
from itertools import groupby, zip_longest

import torch

from config.configurator import check, configure, fail
from config.run import Machine
from data.dataset import Dataset, draws, prompts
from judge import load_judge, reward_scores
from model import complete, load, load_gpt

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
curves = False              # True: draw out_dir/curves.png (of several: compare.png in the first)
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
seed = 0                    # of prompts, blanks and samples; 0: those of the run's evaluation
# letters: B prompts | k completions of each | T positions | n scores of a completion

def painted(tok, ids, chosen, other, width=0):
    """Text of ids (T,), padded to width. On a terminal what was chosen (T,) bool is yellow, or
    green where other (T,) has something else."""
    text, color = '', sys.stdout.isatty() and not os.environ.get('NO_COLOR')
    stop = 1 + max((t for t, i in enumerate(ids) if i not in (tok.pad, tok.eos)), default=-1)
    cells = zip(ids[:stop].tolist(), chosen.tolist(), (ids != other).tolist())
    for (own, new), part in groupby(cells, lambda cell: cell[1:]):
        part = tok.decode([i for i, *_ in part])
        part = ''.join(c if c.isprintable() else '\u00b6' for c in part)    # ends of lines, seen
        text += f"\033[{'1;32' if new else 33}m{part}\033[0m" if own and color else part
        width -= len(part)
    return text + ' ' * width

def listing(tok, tokens, mask, rows, other, names, values, width=0):
    """Heads of columns, the prompt (T,), and a line for each different one of its completions,
    rows (k, T): how often it came, values (n, k), text; the highest first value comes first."""
    count, found, asked = ' ' * 6 * (len(rows) > 1), {}, tokens.masked_fill(mask, tok.mask)
    for j in values[0].argsort(descending=True, stable=True).tolist():
        found.setdefault(tuple(rows[j].tolist()), []).append(j)
    lines = [f"{count and f'{len(js):4d} x'}{'{:10.3f}' * len(names)}   ".format(*values[:, js[0]])
             + painted(tok, rows[js[0]], mask, other[js[0]], width) for js in found.values()]
    head = f"{count}{'{:>10}' * len(names)}   ".format(*names)
    return head, painted(tok, asked, mask, asked, width), lines

def show(step, batch, scores, reward, advantages, tok, names, causal, groups=3, most=6):
    """Prints groups of a step with rewards, advantages (P, k) and, if several, scores (n, P, k)."""
    tokens, mask, rows = (batch[key].cpu() for key in ('tokens', 'mask', 'rows'))
    values = torch.stack((reward, advantages, *(scores if len(names) > 1 else ()))).cpu()
    names = ['reward', 'advantage', *names][:len(values)]
    for p, group in enumerate(rows.view(len(tokens), -1, rows.size(1))[:groups]):
        head, asked, lines = listing(tok, tokens[p], mask[p], group, group, names, values[:, p])
        print(f"step {step}, prompt {p + 1}: {len(group)} completions, {len(lines)} different",
              head + asked, *lines[:most], sep='\n', flush=True)

def completed(net, asked, k):
    """Rows (B, k, T) and scores (n, B, k) for asked: tokens and mask (B, T), uniforms (B, T, k
    or more). k = 0: the likeliest completion alone."""
    found = []
    for tokens, mask, u in zip(*(x.split(c['batch_size']) for x in asked)):
        with machine.autocast():
            rows, where, *_ = complete(net, tokens.to(here), mask.to(here),
                                       u[..., :k].to(here) if k else None, *how, tok.eos)
            batch = {'tokens': tokens, 'mask': mask, 'rows': rows, 'where': where}
            found.append((rows.view(len(tokens), -1, rows.size(1)).cpu(),
                          reward_scores(names, batch, data, causal, judge).cpu()))
    rows, scores = zip(*found)
    return torch.cat(rows), torch.cat(scores, 1)

def own_prompt(text):
    """Tokens and mask (1, T) of a prompt from the command line, or one line that says why not."""
    try:
        ids = tok.encode(text, blanks=True)
        if not 1 <= len(ids) <= T - causal or not (causal or tok.mask in ids):
            raise ValueError(f"{len(ids)} symbols; expected 1 to {T - causal}"
                             + ", with '_' for each blank" * (not causal))
    except ValueError as e:
        fail(f"--prompt={text!r}: {e}")
    rows = data.meta['unit'] == 'rows'      # which end with an id of their own, and then padding
    ids += [tok.mask] * (c['max_new_tokens'] or T) if causal else [tok.eos] * rows
    ids = torch.tensor([(ids + [tok.pad] * T * rows)[:T]])
    return ids, ids == tok.mask

def compare(tokens, mask, sides, k):
    """Prints prompts (B, T) with the first k rows and scores of reference and policy: beside each
    other, or where the terminal is too narrow, below each other."""
    w, extra = max(T, len('reference')), 6 * (k > 1) + 10 * len(names[1:]) + 3
    wide = tok.kind == 'char' and 3 * w + 2 * extra <= shutil.get_terminal_size((100, 40)).columns
    for b in range(len(tokens)):
        (head, asked, old), (_, _, new) = (listing(
            tok, tokens[b], mask[b], rows[b, :k], sides[0][0][b], names[:-1], scores[:-1, b, :k],
            w * wide) for rows, scores in sides)
        if not wide:
            print('\n' * (b > 0) + ' ' * 9 + head + asked, *('reference' + line for line in old),
                  *('policy   ' + line for line in new), sep='\n')
            continue
        if b == 0:
            print(f"{'prompt':{w}}{head}{'reference':{w}}{head}policy")
        for cells in zip_longest([asked], old, new, fillvalue=''):
            print('{:{w}}{:{x}}{}'.format(*cells, w=w, x=w + extra).rstrip())

def draw_curves(folders):
    """Draws the log of a run, or of several what they did on held-out prompts, as a PNG."""
    try:
        import matplotlib.pyplot as plt
        logs = [[json.loads(line) for line in open(os.path.join(folder, 'log.jsonl'))
                 if line.endswith('\n')] for folder in folders]
    except (ImportError, OSError) as e:
        fail(f"no curves: {e}; they need matplotlib, and the log of a run of train_grpo.py")
    several, panels = len(logs) > 1, {      # of several runs, only the last key of each panel
        'verify, held-out': ('eval/ref_verify', 'eval/ref_verify_argmax', 'eval/verify_argmax',
                             'eval/verify'),
        'reward': ('mean_reward', 'eval/reward'),
        'KL to the reference, nats per choice': ('mean_kl', 'eval/kl'),
        'entropy, nats per choice': ('entropy', 'eval/distinct', 'eval/entropy')}
    for log in logs if several else ():     # judges differ in scale, so gains are compared
        unit = next((line['std_reward'] for line in log if line.get('std_reward')), 1.0)
        log[:] = [line | {'eval/reward': (line['eval/reward'] - line['eval/ref_reward']) / unit}
                  for line in log if 'eval/reward' in line]
    plt.switch_backend('Agg')
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.4), sharex=True, layout='constrained')
    for ax, (title, keys) in zip(axes.flat, panels.items()):
        for i, (folder, log) in enumerate(zip(folders, logs)):
            for key in keys[-1:] if several else keys:
                xy = [(line['step'], line[key]) for line in log if line.get(key) is not None]
                color = 'gray' if 'ref' in key else 'C1' if 'distinct' in key else f'C{i}'
                if xy:
                    ax.plot(*zip(*xy), '--' if 'argmax' in key else '-', color=color,
                            alpha=1 if 'eval' in key else 0.4, label=folder if several else key)
                    ax.legend(frameon=False)
        ax.set_title(title + ', gain in std' * (several and title == 'reward'), loc='left')
    figure.supxlabel('step')
    path = os.path.join(folders[0], 'compare.png' if several else 'curves.png')
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")

if __name__ == "__main__":
    check({"num_samples >= 1": '', "k >= 0": '', "temperature >= 0": '', "top_k >= 0": '',
           "0 <= top_p <= 1": ''}, configure(globals(), quiet=True))
    if curves:
        sys.exit(draw_curves(out_dir.split(',')))
    make = f"python train_grpo.py config/grpo_config.py --out_dir={out_dir}"
    try:
        with open(os.path.join(out_dir, 'config.json'), encoding='utf-8') as f:
            data = Dataset(json.load(f)['dataset'])
    except (OSError, ValueError) as e:
        fail(f"no run in {out_dir} ({type(e).__name__}); make one with: {make}")
    path, tok = os.path.join(out_dir, checkpoint), data.tok
    ckpt = load(path, 'policy', data, make)
    c = ckpt['config'] | {'group_size': max(k, ckpt['config']['group_size'])}
    T, causal, machine = c['block_size'], c['mode'] == 'causal', Machine(device, c['dtype'])
    here = machine.device
    how = temperature or c['temperature'], top_k or c['top_k'], top_p or c['top_p']
    names = ['judge'] * bool(ckpt['judge']) + ['verify'] * bool(data.verify) + ['distinct']
    judge = load_judge(ckpt['judge'], data, make, T, here) if ckpt['judge'] else None
    paths = c['reference_checkpoint'] or ckpt['start'], path
    nets = [load_gpt(net, data, make, T, c['mode'], here) for net in paths]
    asked = prompts(data, c, 'val', max(num_samples, c['eval_prompts']), draws(seed, 'eval'))
    if prompt or '--prompt=' in sys.argv:
        tokens, mask = own_prompt(prompt)
        asked = tokens, mask, asked[2][:1, :tokens.size(1)]
    asked, means = [x[:1] if k else x for x in asked], ''
    for label, count in (('sampled  ', k or 4), ('likeliest', 0)):  # both nets get equal uniforms
        sides = [completed(net, asked, count) for net in nets]
        means += f"\n  {label}" + ''.join(f"   {name} {old.mean():.3f} -> {new.mean():.3f}"
                                          for name, old, new in zip(names, *(s for _, s in sides)))
        if argmax == (count == 0):
            compare(*(x[:num_samples] for x in asked[:2]), sides, 1 if argmax else k or 1)
    unlike = f", without its filter {c['prompt_filter']}" if c['prompt_filter'] else ''
    print(f"\nreference -> policy, mean over prompts ({len(asked[0])}{unlike}):{means}")
