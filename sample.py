"""Look at a run: the same blanks before and after GRPO, with scores; and its curves.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py --out_dir=out-grpo,out-other --curves=True"""
import itertools, json, os, shutil, sys
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
    """Text of ids (T,), T wide; on a terminal chosen ones (T,) yellow, or green if not as other."""
    text, color = '', sys.stdout.isatty() and not os.environ.get('NO_COLOR')
    stop = max((t + 1 for t, i in enumerate(ids) if i not in (tok.pad, tok.eos)), default=0)
    cells = zip(ids[:stop].tolist(), chosen.tolist(), (ids != other).tolist())
    for (own, new), part in itertools.groupby(cells, lambda cell: cell[1:]):     # line ends: \u00b6
        part = ''.join(c if c.isprintable() else '\u00b6' for c in tok.decode(i for i, *_ in part))
        text += f"\033[{'1;32' if new else 33}m{part}\033[0m" if own and color else part
    return text + ' ' * (len(ids) - stop)

def table(tok, tokens, mask, sides, names, most=None):
    """Prints a prompt (T,) and its different completions on each of sides, (label, rows (k, T),
    values (n, k)), highest first value first: count, values, text; abreast on a wide terminal."""
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
        blocks = [map('   '.join, itertools.zip_longest(*blocks, fillvalue=' ' * width))]
    print(*(line.rstrip() for block in blocks for line in block), sep='\n', flush=True)

def completed(net, asked, k):
    """Rows (B, k, T) and scores (n, B, k) for what prompts() asks; k = 0: the likeliest alone."""
    found = []
    for tokens, mask, u in zip(*(x.to(machine.device).split(c['batch_size']) for x in asked)):
        with machine.autocast():
            rows, where, *_ = complete(net, tokens, mask, u[..., :k] if k else None, *how, tok.eos)
            batch = {'tokens': tokens, 'mask': mask, 'rows': rows, 'where': where}
            scores = reward_scores(names, batch, data, causal, judge).cpu()
        found.append((rows.view(*scores.shape[1:], -1).cpu(), scores))
    return torch.cat([rows for rows, _ in found]), torch.cat([scores for _, scores in found], 1)

def draw_curves(folders):
    """Draws the log of a run, or of several what they did on held-out prompts, as a PNG."""
    try:
        from matplotlib.figure import Figure
        logs = [[json.loads(s) for s in open(f'{x}/log.jsonl') if '\n' in s] for x in folders]
    except (ImportError, OSError) as e:
        fail(f"no curves: {e}; they need matplotlib, and the log of a run of train_grpo.py")
    several, figure = len(logs) > 1, Figure(figsize=(10, 6.4), layout='constrained')
    panels = {                  # their keys and styles; of several runs, only the last key
        'verify, held-out': {'eval/ref_verify': 'C7', 'eval/ref_verify_argmax': 'C7--',
                             'eval/verify_argmax': 'C0--', 'eval/verify': 'C0'},
        'reward': {'mean_reward': 'C9', 'eval/reward': 'C0'},
        'KL to the reference, nats per choice': {'mean_kl': 'C9', 'eval/kl': 'C0'},
        'entropy, nats per choice': {'entropy': 'C9', 'eval/distinct': 'C1', 'eval/entropy': 'C0'}}
    for ax, (title, styles) in zip(figure.subplots(2, 2, sharex=True).flat, panels.items()):
        for (i, log), key in itertools.product(enumerate(logs), list(styles)[-several:]):
            points = [(line['step'], line[key]) for line in log if line.get(key) is not None]
            x, y = torch.tensor(points, dtype=torch.float64).view(-1, 2).T
            if several and key == 'eval/reward':            # judges differ in scale
                y = (y - y[:1]) / next(line['std_reward'] for line in log if 'std_reward' in line)
            ax.plot(x, y, f'C{i}' if several else styles[key], label=folders[i] if several else key)
        if not several or ax is figure.axes[-1]:            # one legend serves all panels
            ax.legend(frameon=False)
        ax.set_title(title + ', gain in std' * (several and title == 'reward'), loc='left')
    figure.supxlabel('step')
    figure.savefig(path := f"{folders[0]}/{'compare' if several else 'curves'}.png", dpi=120)
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
    path, tok, unit = f'{out_dir}/{checkpoint}', data.tok, data.meta['unit']
    ckpt = load(path, 'policy', data, make)
    c = ckpt['config'] | {'group_size': max(k, ckpt['config']['group_size'])}
    T, causal, machine = c['block_size'], c['mode'] == 'causal', Machine(device, c['dtype'])
    how = temperature or c['temperature'], top_k or c['top_k'], top_p or c['top_p']
    names = ['judge'] * bool(ckpt['judge']) + ['verify'] * bool(data.verify) + ['distinct']
    shown = len(names) - 1 or 1     # scores of a completion, not of its group, if there are any
    judge = load_judge(ckpt['judge'], data, make, T, machine.device) if ckpt['judge'] else None
    nets = [load_gpt(net, data, make, T, c['mode'], machine.device)
            for net in (c['reference_checkpoint'] or ckpt['start'], path)]
    asked = prompts(data, c, 'val', max(num_samples, c['eval_prompts']), draws(seed, 'eval'))
    if prompt or '--prompt=' in sys.argv:       # one's own, which becomes a row
        try:
            ids = tok.encode(prompt, blanks=True)
            if not 1 <= len(ids) <= T - causal or not (causal or tok.mask in ids):
                raise ValueError(f"{len(ids)} symbols; expected 1 to {T - causal}, '_' for a blank")
        except ValueError as e:
            fail(f"--prompt={prompt!r}: {e}")
        ids += [tok.mask] * (c['max_new_tokens'] or T) if causal else [tok.eos] * (unit == 'rows')
        ids = torch.tensor([(ids + [tok.pad] * T)[:T]])                     # (1, T)
        asked = ids, ids == tok.mask, asked[2]
    asked = [x[:1] if k or prompt else x for x in asked]
    of = f"{len(asked[0])} prompt(s)" + ", unfiltered" * bool(c['prompt_filter'])
    for label, count in (('sampled', k or 4), ('likeliest', 0)):    # both nets get equal uniforms
        (start, old), (now, new) = (completed(net, asked, count) for net in nets)
        for b in range(min(num_samples, len(asked[0]))) if argmax == (count == 0) else ():
            table(tok, asked[0][b], asked[1][b], [
                ('reference', start[b, :k or 1], old[:shown, b, :k or 1]),
                ('policy', now[b, :k or 1], new[:shown, b, :k or 1])], names[:shown])
        means = (f"{name} {x.mean():.3f} -> {y.mean():.3f}" for name, x, y in zip(names, old, new))
        print(f"{label}, mean over {of}:", *means, sep='   ')
