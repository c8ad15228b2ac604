"""Look at a run: the same blanks before and after GRPO, with scores; and its curves.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py --out_dir=out-grpo,out-other --curves=True"""
import json
import os
import shutil
import sys
from itertools import groupby, zip_longest

import torch

from config.configurator import configure, fail
from config.run import Machine, check
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

def painted(tok, ids, chosen, other):
    """Text of ids (T,), T wide. On a terminal what was chosen (T,) bool is yellow, or green where
    other (T,) has something else."""
    text, color = '', sys.stdout.isatty() and not os.environ.get('NO_COLOR')
    stop = 1 + max((t for t, i in enumerate(ids) if i not in (tok.pad, tok.eos)), default=-1)
    cells = zip(ids[:stop].tolist(), chosen.tolist(), (ids != other).tolist())
    for (own, new), part in groupby(cells, lambda cell: cell[1:]):
        part = tok.decode([i for i, *_ in part])
        part = ''.join(c if c.isprintable() else '\u00b6' for c in part)    # ends of lines, seen
        text += f"\033[{'1;32' if new else 33}m{part}\033[0m" if own and color else part
    return text + ' ' * (len(ids) - stop)

def table(tok, tokens, mask, sides, names, most=None):
    """Prints for each of sides, (label, rows (k, T), values (n, k)), the prompt (T,) and below it
    each different completion, the highest first value first: how often it came, values, text.
    Two sides stand beside each other where the terminal is wide enough."""
    asked, blocks = tokens.masked_fill(mask, tok.mask), []
    for label, rows, values in sides:
        found, head = {}, f'{label:9}' + ''.join(f'{name:>10}' for name in names) + '   '
        for j in values[0].argsort(descending=True, stable=True).tolist():
            found.setdefault(tuple(rows[j].tolist()), []).append(j)
        blocks.append([head + painted(tok, asked, mask, asked)])
        for j, *more in list(found.values())[:most]:
            line = f'{1 + len(more):7} x' + ''.join(f'{v:10.3f}' for v in values[:, j])
            blocks[-1].append(f'{line}   {painted(tok, rows[j], mask, sides[0][1][j])}')
    width = len(head) + len(tokens)
    if tok.kind == 'char' and 2 * width + 3 <= shutil.get_terminal_size((100, 40)).columns:
        blocks = [map('   '.join, zip_longest(*blocks, fillvalue=' ' * width))]
    print(*(line.rstrip() for block in blocks for line in block), sep='\n', flush=True)

def completed(net, asked, k):
    """Rows (B, k, T) and scores (n, B, k) for what prompts() asks; k = 0: the likeliest alone."""
    found = []
    for tokens, mask, u in zip(*(x.to(here).split(c['batch_size']) for x in asked)):
        with machine.autocast():
            rows, where, *_ = complete(net, tokens, mask, u[..., :k] if k else None, *how, tok.eos)
            batch = {'tokens': tokens, 'mask': mask, 'rows': rows, 'where': where}
            scores = reward_scores(names, batch, data, causal, judge).cpu()
        found.append((rows.view(*scores.shape[1:], -1).cpu(), scores))
    rows, scores = zip(*found)
    return torch.cat(rows), torch.cat(scores, 1)

def own_prompt(text):
    """Tokens and mask (1, T) of a prompt from the command line, or one line that says why not."""
    try:
        ids = tok.encode(text, blanks=True)
    except ValueError as e:
        fail(f"--prompt={text!r}: {e}")
    if not 1 <= len(ids) <= T - causal or not (causal or tok.mask in ids):
        fail(f"--prompt={text!r}: {len(ids)} symbols; expected 1 to {T - causal}, '_' for a blank")
    ids += [tok.mask] * (c['max_new_tokens'] or T) if causal else []
    ids += [tok.eos] * (not causal and data.meta['unit'] == 'rows')
    ids = torch.tensor([(ids + [tok.pad] * T)[:T]])
    return ids, ids == tok.mask

def draw_curves(folders):
    """Draws the log of a run, or of several what they did on held-out prompts, as a PNG."""
    try:
        import matplotlib.pyplot as plt
        logs = [[json.loads(line) for line in open(f'{folder}/log.jsonl') if line.endswith('\n')]
                for folder in folders]
    except (ImportError, OSError) as e:
        fail(f"no curves: {e}; they need matplotlib, and the log of a run of train_grpo.py")
    several, panels = len(logs) > 1, {      # of several runs, only the last key of each panel
        'verify, held-out': {'eval/ref_verify': 'C7', 'eval/ref_verify_argmax': 'C7--',
                             'eval/verify_argmax': 'C0--', 'eval/verify': 'C0'},
        'reward': {'mean_reward': 'C9', 'eval/reward': 'C0'},
        'KL to the reference, nats per choice': {'mean_kl': 'C9', 'eval/kl': 'C0'},
        'entropy, nats per choice': {'entropy': 'C9', 'eval/distinct': 'C1', 'eval/entropy': 'C0'}}
    plt.switch_backend('Agg')
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.4), sharex=True, layout='constrained')
    for ax, (title, styles) in zip(axes.flat, panels.items()):
        for i, (folder, log) in enumerate(zip(folders, logs)):
            for key, style in list(styles.items())[-several:]:
                lines = [line for line in log if line.get(key) is not None]
                x, y = ([line[name] for line in lines] for name in ('step', key))
                if several and key == 'eval/reward':        # judges differ in scale
                    unit = next(line['std_reward'] for line in log if 'std_reward' in line)
                    y = [(value - y[0]) / unit for value in y]
                ax.plot(x, y, f'C{i}' if several else style, label=folder if several else key)
        if not several or ax is axes[1, 1]:     # one legend serves all panels
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
        data = Dataset(json.load(open(f'{out_dir}/config.json', encoding='utf-8'))['dataset'])
    except (OSError, ValueError) as e:
        fail(f"no run in {out_dir} ({type(e).__name__}); make one with: {make}")
    path, tok = f'{out_dir}/{checkpoint}', data.tok
    ckpt = load(path, 'policy', data, make)
    c = ckpt['config'] | {'group_size': max(k, ckpt['config']['group_size'])}
    T, causal, machine = c['block_size'], c['mode'] == 'causal', Machine(device, c['dtype'])
    here = machine.device
    how = temperature or c['temperature'], top_k or c['top_k'], top_p or c['top_p']
    names = ['judge'] * bool(ckpt['judge']) + ['verify'] * bool(data.verify) + ['distinct']
    judge = load_judge(ckpt['judge'], data, make, T, here) if ckpt['judge'] else None
    nets = [load_gpt(net, data, make, T, c['mode'], here)
            for net in (c['reference_checkpoint'] or ckpt['start'], path)]
    asked = prompts(data, c, 'val', max(num_samples, c['eval_prompts']), draws(seed, 'eval'))
    if prompt or '--prompt=' in sys.argv:
        asked = *own_prompt(prompt), asked[2]
    asked = [x[:1] if k or prompt else x for x in asked]
    of = f"{len(asked[0])} prompt(s)" + ", unfiltered" * bool(c['prompt_filter'])
    for label, count in (('sampled', k or 4), ('likeliest', 0)):    # both nets get equal uniforms
        sides = [completed(net, asked, count) for net in nets]
        if argmax == (count == 0):
            shown = 1 if argmax else k or 1         # completions of each prompt
            for b in range(min(num_samples, len(asked[0]))):
                table(tok, asked[0][b], asked[1][b], [
                    (name, rows[b, :shown], scores[:-1, b, :shown])
                    for name, (rows, scores) in zip(('reference', 'policy'), sides)], names[:-1])
        print(f"{label}, mean over {of}:", *(
            f"{name} {old.mean():.3f} -> {new.mean():.3f}"
            for name, old, new in zip(names, *(scores for _, scores in sides))), sep='   ')
