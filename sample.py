"""Look at a run: the same blanks before and after GRPO, with scores; its curves; the way out.

    python sample.py --out_dir=out-grpo --prompt='1_+3_=__7' --k=16
    python sample.py --out_dir=out-grpo,out-other --curves=True
    python sample.py --checkpoint=out/generator_arithmetic.pt         # a generator, without a run
    python sample.py --out_dir=out-causal --export=my-folder          # for Hugging Face"""
import json
import os
import sys
from collections import Counter

from common import (at_least, autocast, between, configure, digest_of, fail, init_device, knobs,
                    new_file, read_json, read_json_lines)

import torch
import torch.nn.functional as F

import train_grpo
from data.dataset import (SPECIALS, Dataset, draw_prompts, draws, print_group, prompts_of_texts,
                          row_text)
from judge import BUILT_IN, Scorer, load_judge
from model import complete, default_recipe, ensure_checkpoint, load_checkpoint, load_gpt, norm

# knobs
out_dir = 'out-grpo'        # folder of a run; with --curves=True also several: A,B
checkpoint = 'ckpt.pt'      # in it: ckpt.pt, best.pt, ckpt-000100.pt; or a file of its own
prompt = ''                 # one of your own: '_' is a blank; causal: what to continue
prompts = ''                # file of prompts of your own, one a line
num_samples = 10            # held-out prompts to show
k = 0                       # > 0: list so many completions of one prompt, with counts
argmax = False              # True: show the likeliest completion; False: sampled ones
temperature = 0.0           # of samples; 0: the run's own, here and in the next two
top_k = 0                   # sample from the k likeliest ids
top_p = 0.0                 # sample from the fewest ids with this mass
n_fill_steps = 0            # passes over a row, of reference and policy; 0: the run's own
curves = False              # True: draw out_dir/curves.png (of several: compare.png in the first)
export = ''                 # folder to write the model to, in the format of Hugging Face
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
seed = 0                    # of prompts, blanks and samples; 0: those of the run's evaluation
# letters: B prompts | k completions of each | T positions


def check_knobs():
    """Ends with one line if a knob has an invalid value."""
    at_least(1, num_samples=num_samples)
    at_least(0, k=k, top_k=top_k, n_fill_steps=n_fill_steps, seed=seed)
    if temperature != 0:
        at_least(1e-6, temperature=temperature)
    between(0, 1, top_p=top_p)


# ---- completions, before and after ---------------------------------------------------------------


def own_prompts():
    """The texts of --prompt or --prompts, a list; [] if neither is given."""
    if prompt or '--prompt=' in sys.argv:
        return [prompt]
    if prompts == '':
        return []
    try:
        with open(prompts, encoding='utf-8-sig') as file:
            strings = [line.rstrip('\n') for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        fail(f"{prompts}: {getattr(e, 'strerror', None) or e}; expected a text file, one prompt a "
             "line")
    if not strings:
        fail(f"{prompts}: no prompt in it; expected one a line")
    return strings


def draw_or_read_prompts(data, c):
    """Prompts of the user's own, or those of the run's evaluation. c: the knobs of the run."""
    n_samples = max(k, c['group_size'], 4)
    rng = draws(seed, 'eval')
    strings = own_prompts()
    if strings:
        try:
            found = prompts_of_texts(strings, data.tok, data.meta['unit'], n_samples, rng,
                                     block_size=c['block_size'], mode=c['mode'],
                                     max_new_tokens=c['max_new_tokens'])
        except ValueError as e:
            fail(f"prompt {e}")
        return found[:1] if k > 0 and not prompts else found
    names = ('block_size', 'mode', 'blank_kind', 'blank_low', 'blank_high', 'blank_span',
             'max_new_tokens')
    found = draw_prompts(data, 'val', c['eval_prompts'], n_samples, rng,
                         **{name: c[name] for name in names})
    return found[:1] if k > 0 else found


def sampling_knobs(c):
    """Arguments of complete(): the run's knobs, or what was asked for here."""
    return {'temperature': temperature or c['temperature'], 'top_k': top_k or c['top_k'],
            'top_p': top_p or c['top_p'], 'n_fill_steps': n_fill_steps or c['n_fill_steps'],
            'fill_order': c['fill_order']}


def complete_and_score(model, some, greedy, c, scorer, names):
    """Completions (B, k, T) of some Prompts, on the CPU, and their scores {name: (B, k)}; first, if
    there are several rewards, their weighted sum."""
    rows = []
    scores = {name: [] for name in names}
    for part in some.split(c['batch_size']):
        with autocast(model.device, c['dtype']):
            r = complete(model, part, greedy, **sampling_knobs(c))
            found = scorer.score(names, r)
        rows.append(r.rows.view(len(part), -1, c['block_size']).cpu())
        for name in names:
            scores[name].append(found[name].cpu())
    scores = {name: torch.cat(parts) for name, parts in scores.items()}
    if len(c['rewards']) > 1 and set(c['rewards']) <= set(scores):
        whole = sum(weight * scores[name] for name, weight in c['rewards'].items())
        scores = {'reward': whole} | scores
    return torch.cat(rows), scores


def print_passes(label, model, some, c, tok):
    """What stood in the completions of one prompt after each pass, and how often: from the second
    pass on, blanks fit what was written before."""
    with autocast(model.device, c['dtype']):
        r = complete(model, some, **sampling_knobs(c))
    rows = r.rows.cpu()                                             # (k, T)
    turn = r.turn.cpu()                                             # (k, T)
    for t in sorted(set(turn[turn >= 0].tolist())):     # with few blanks some passes have none
        print(f'{label}, after pass {t + 1}')
        states = Counter(tuple(row) for row in rows.masked_fill(turn > t, tok.mask).tolist())
        for state, count in sorted(states.items()):
            print(f'{count:7} x   {row_text(tok, torch.tensor(state), some.mask[0])}')


def compare(models, some, greedy, c, scorer, names, shown):
    """Prints the first `shown` of some Prompts with their completions by each of the models {label:
    GPT}, from the same random numbers, and the mean scores over all."""
    found = {label: complete_and_score(model, some, greedy, c, scorer, names)
             for label, model in models.items()}
    names = list(next(iter(found.values()))[1])
    columns = [name for name in names if name != 'distinct']        # that one is about the group
    for b in range(min(shown, len(some))):
        listed = k or 1
        for label, (rows, scores) in found.items():
            print_group(scorer.data.tok, some.tokens[b], some.mask[b], rows[b, :listed], label,
                        {name: scores[name][b, :listed] for name in columns or names})
    means = []
    for name in names:
        means.append(f"{name} " + ' -> '.join(f"{scores[name].mean():.3f}"
                                              for _, scores in found.values()))
    how = 'likeliest' if greedy else 'sampled'
    print(f"{how}, mean over {len(some)} prompt(s):   " + '   '.join(means))


# ---- curves --------------------------------------------------------------------------------------


def points(log, key, factor=1.0):
    """Steps and values of a key of the log, two lists."""
    lines = [line for line in log if line.get(key) is not None]
    return [line['step'] for line in lines], [factor * line[key] for line in lines]


def draw_line(ax, log, key, color, name='', style='-', factor=1.0):
    """A curve with its name at its end; nothing if the log does not have the key."""
    steps, values = points(log, key, factor)
    if values:
        ax.plot(steps, values, style, color=color, lw=1.8)
        ax.annotate(name, (steps[-1], values[-1]), (5, 0), textcoords='offset points',
                    color=color, va='center', fontsize=9)


def panels(figure, logs):
    """A large panel and three small ones {name: axes}, with their titles. The large one is about
    the truth, if the logs know it, else about the reward."""
    axes = figure.subplot_mosaic([['large', 'reward'], ['large', 'KL'], ['large', 'entropy']],
                                 width_ratios=[1.7, 1], sharex=True)
    goal, factor = 'verify', 100.0
    axes['large'].set_title('held-out completions that are true, %', loc='left')
    if not any('eval/verify' in line for log in logs for line in log):
        goal, factor = 'reward', 1.0
        axes['large'].set_title('reward of held-out completions', loc='left')
    elif all(0 <= line.get('eval/verify', 0) <= 1 for log in logs for line in log):
        axes['large'].set_ylim(0, 100)
    axes['reward'].set_title('reward', loc='left', fontsize=10)
    axes['KL'].set_title('KL to the reference, nats a choice', loc='left', fontsize=10)
    axes['entropy'].set_title('entropy, nats a choice', loc='left', fontsize=10)
    for ax in axes.values():
        ax.spines[['top', 'right']].set_visible(False)
    axes['large'].margins(x=0.02)
    return axes, goal, factor


def draw_one(figure, log):
    """Draws the curves of one run, before and after beside each other."""
    axes, goal, factor = panels(figure, [log])
    large = axes['large']
    draw_line(large, log, f'eval/{goal}', 'C0', 'policy', factor=factor)
    draw_line(large, log, f'eval/{goal}_argmax', 'C0', '', '--', factor)
    steps, values = points(log, f'eval/{goal}_argmax', factor)
    if values:
        middle = len(values) // 2
        large.annotate("policy, likeliest", (steps[middle], values[middle]), (0, 9),
                       textcoords='offset points', color='C0', fontsize=9, ha='center')
    steps, values = points(log, f'eval/ref_{goal}_argmax', factor)
    if values:
        large.plot(steps, values, '--', color='0.45', lw=1.8)
        large.annotate("reference, likeliest: the line to beat", (steps[-1], values[-1]), (0, -12),
                       textcoords='offset points', color='0.35', fontsize=9, ha='right')
    names = sorted({key for line in log for key in line if key.startswith('eval/reward/')
                    and not key.endswith('_argmax')})
    if len(names) > 1:                          # each reward under its own name
        for i, key in enumerate(names):
            draw_line(axes['reward'], log, key, f'C{i + 1}', key.removeprefix('eval/reward/'))
    draw_line(axes['reward'], log, 'eval/reward', 'C0', 'sum' if len(names) > 1 else '')
    draw_line(axes['KL'], log, 'eval/kl', 'C0')
    draw_line(axes['entropy'], log, 'eval/entropy', 'C0')


def draw_several(figure, logs):
    """Draws several runs {folder: log}, a colour each."""
    axes, goal, factor = panels(figure, logs.values())
    axes['reward'].set_title('reward gained, in deviations of the start', loc='left', fontsize=10)
    for i, (folder, log) in enumerate(logs.items()):
        color = f'C{i}'
        steps, values = points(log, f'eval/{goal}', factor)
        axes['large'].plot(steps, values, color=color, lw=1.8, label=folder)
        steps, values = points(log, 'eval/reward')
        _, deviations = points(log, 'std_reward')
        if any(deviations[:1]):                 # judges differ in scale
            values = [(value - values[0]) / deviations[0] for value in values]
        axes['reward'].plot(steps, values, color=color)
        draw_line(axes['KL'], log, 'eval/kl', color)
        draw_line(axes['entropy'], log, 'eval/entropy', color)
    axes['large'].legend(frameon=False)


def draw_curves(folders):
    """Draws the log of a run, or of several beside each other, as a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        fail(f"no curves: {e}; pip install matplotlib")
    logs = {folder: read_json_lines(f'{folder}/log.jsonl') for folder in folders}
    figure = Figure(figsize=(10, 4.4), layout='constrained', facecolor='white')
    if len(folders) == 1:
        draw_one(figure, logs[folders[0]])
        path = f'{folders[0]}/curves.png'
    else:
        draw_several(figure, logs)
        path = f'{folders[0]}/compare.png'
    figure.supxlabel('step')
    with new_file(path) as file:
        figure.savefig(file, dpi=120)
    print(f"wrote {path}")


# ---- the way out: a folder for Hugging Face ------------------------------------------------------


def qwen3_config(model):
    """Our GPT in the words of Hugging Face: a Qwen3 whose norms are all ones. The gated network
    relu(gate x) * (up x), with gate = up, is our relu(up x)^2."""
    args = model.args
    size = model.vocab_size + 3
    return {
        'architectures': ['Qwen3ForCausalLM'], 'model_type': 'qwen3', 'hidden_act': 'relu',
        'vocab_size': size, 'hidden_size': args['n_embd'], 'intermediate_size': 4 * args['n_embd'],
        'num_hidden_layers': args['n_layer'], 'num_attention_heads': args['n_head'],
        'num_key_value_heads': args['n_head'], 'head_dim': args['n_embd'] // args['n_head'],
        'max_position_embeddings': args['block_size'] + 1, 'rope_theta': 10000.0,
        'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000.0},
        'rms_norm_eps': torch.finfo(torch.float32).eps, 'attention_bias': False,
        'tie_word_embeddings': False, 'dtype': 'float32', 'bos_token_id': model.bos_id,
        'eos_token_id': model.tok.eos, 'pad_token_id': model.pad_id}


def qwen3_weights(model):
    """The weights under the names that Qwen3 has for them, float32."""
    n_embd = model.args['n_embd']
    ones = torch.ones(n_embd)
    ones_of_head = torch.ones(n_embd // model.args['n_head'])
    # The norm of the embedding has no weights, so it can be applied to the rows once.
    weights = {'model.embed_tokens.weight': norm(model.embed.weight), 'model.norm.weight': ones,
               'lm_head.weight': F.pad(model.head.weight, (0, 0, 0, 3))}    # no output: specials
    for i, block in enumerate(model.blocks):
        q, k, v = block.qkv.weight.view(3, n_embd, n_embd)
        weights |= {f'model.layers.{i}.{name}.weight': value for name, value in {
            'self_attn.q_proj': q, 'self_attn.k_proj': k, 'self_attn.v_proj': v,
            'self_attn.o_proj': block.proj.weight, 'self_attn.q_norm': ones_of_head,
            'self_attn.k_norm': ones_of_head, 'mlp.gate_proj': block.up.weight,
            'mlp.up_proj': block.up.weight, 'mlp.down_proj': block.down.weight,
            'input_layernorm': ones, 'post_attention_layernorm': ones}.items()}
    return {name: value.detach().float().contiguous().clone() for name, value in weights.items()}


def char_tokenizer(tok):
    """tokenizer.json of characters: byte pairs without merges, and a BOS in front of every text."""
    names = {f'<|{name}|>': tok.base + i for i, name in enumerate(SPECIALS)}
    added = [{'id': i, 'content': name, 'special': True, 'normalized': False, 'lstrip': False,
              'rstrip': False, 'single_word': False} for name, i in names.items()]
    bos = {'id': '<|bos|>', 'type_id': 0}
    return {
        'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added,
        'normalizer': None, 'pre_tokenizer': None, 'decoder': {'type': 'Fuse'},
        'post_processor': {
            'type': 'TemplateProcessing',
            'single': [{'SpecialToken': bos}, {'Sequence': {'id': 'A', 'type_id': 0}}],
            'pair': [{'SpecialToken': bos}, {'Sequence': {'id': 'A', 'type_id': 0}},
                     {'Sequence': {'id': 'B', 'type_id': 1}}],
            'special_tokens': {'<|bos|>': {'id': '<|bos|>', 'ids': [tok.bos],
                                           'tokens': ['<|bos|>']}}},
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': None,
                  'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                  'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False,
                  'vocab': tok.ids | names, 'merges': []}}


def export_to(folder, model):
    """Writes a folder that transformers loads; see qwen3_config()."""
    try:
        from safetensors.torch import save
    except ImportError as e:
        fail(f"no export: {e}; pip install safetensors")
    tok = model.tok
    special_ids = [tok.mask, tok.bos, tok.pad]
    files = {
        'config.json': qwen3_config(model),
        'generation_config.json': {             # the special ids have no output that was learned
            'bos_token_id': tok.bos, 'eos_token_id': tok.eos, 'pad_token_id': tok.pad,
            'suppress_tokens': special_ids, 'do_sample': True}}
    how = "a causal model: AutoModelForCausalLM.from_pretrained(folder).generate() continues a text"
    if not model.causal:
        how = ("a model that fills blanks: give it a 4-dimensional attention mask of 0, so that "
               f"each position sees all, and id {tok.mask} in the blanks, without a BOS")
    note = f"{how}.\n"
    if tok.kind == 'char':
        files['tokenizer.json'] = char_tokenizer(tok)
        files['tokenizer_config.json'] = {
            'tokenizer_class': 'PreTrainedTokenizerFast', 'bos_token': '<|bos|>',
            'pad_token': '<|pad|>', 'mask_token': '<|mask|>', 'eos_token': '\n',
            'clean_up_tokenization_spaces': False,
            'model_input_names': ['input_ids', 'attention_mask']}
    else:
        note += ("Its tokenizer is GPT-2's own: AutoTokenizer.from_pretrained('gpt2'). Put the "
                 f"BOS, id {tok.bos}, in front of a text.\n")
    for name, content in files.items():
        with new_file(f'{folder}/{name}', 'w') as file:
            json.dump(content, file, indent=1, ensure_ascii=False)
    with new_file(f'{folder}/README.md', 'w') as file:
        file.write(f"Exported from a small GPT, {note}")
    with new_file(f'{folder}/model.safetensors') as file:
        file.write(save(qwen3_weights(model), metadata={'format': 'pt'}))
    print(f"wrote {folder}: {', '.join(files)}, model.safetensors, README.md")


# ---- a run, or a generator alone -----------------------------------------------------------------


def functions_of(run, c):
    """Reward functions {name: function} that the run's config files define; those of files that
    are gone or do not fit any more are left out, and told."""
    files = [path for path in run['config_files'] if os.path.isfile(path)]
    config, functions = configure(dict(vars(train_grpo)), files, quiet=True)
    if config.get('functions') != c.get('functions'):
        print(f"warning: {', '.join(run['config_files'])}: the functions there are not those of "
              "the run any more")
    return {name: function for name, function in functions.items() if name in c['rewards']}


def open_run():
    """Of a run: its knobs, {label: GPT} of reference and policy, a Scorer, names of rewards."""
    make = f"python train_grpo.py config/grpo_config.py --out_dir={out_dir}"
    data = Dataset(read_json(f'{out_dir}/config.json', {'dataset': str}, make)['dataset'])
    make = f"python train_grpo.py --out_dir={out_dir}, with the config files of that run"
    run = load_checkpoint(f'{out_dir}/{checkpoint}', 'policy', data, make)
    c = run['config']
    between(0, c['block_size'], n_fill_steps=n_fill_steps)
    if n_fill_steps > 1 and c['mode'] == 'causal':
        fail(f"n_fill_steps = {n_fill_steps}: {out_dir} writes from left to right, token by token")
    torch_device, _ = init_device(device, c['dtype'])
    ask = (c['block_size'], c['mode'], torch_device)
    policy = load_gpt(f'{out_dir}/{checkpoint}', data, make, *ask)
    of_run = {name: c[name] for name in ('dataset', 'mode', 'block_size')}
    reference_path = c['reference_checkpoint'] or run['start']
    recipe = c['generator_recipe'] or default_recipe('generator', data)
    _, make = ensure_checkpoint(reference_path, 'model.py', recipe, **of_run)
    reference = load_gpt(reference_path, data, make, *ask)
    scorer = Scorer(data, functions=functions_of(run, c))
    if run['judge']:
        recipe = c['judge_recipe'] or default_recipe('judge', data)
        _, make = ensure_checkpoint(run['judge'], 'judge.py', recipe, **of_run)
        scorer.judge = load_judge(run['judge'], data, make, c['block_size'], torch_device)
    if digest_of(reference, scorer.judge) != c['reference_and_judge']:
        fail(f"{reference_path} or {run['judge'] or 'the judge'} is not the one that {out_dir} was "
             "made with; bring the old one back, or start that run anew")
    names = [name for name in c['rewards'] if name in BUILT_IN or name in scorer.functions]
    return c, {'reference': reference, 'policy': policy}, scorer, names


def open_generator():
    """The same of a generator, or any policy, without a run and without a judge."""
    saved = load_checkpoint(checkpoint, 'generator')
    data = Dataset(saved['config']['dataset'])
    c = knobs(vars(train_grpo))                 # its defaults
    c |= {name: value for name, value in saved['config'].items() if name in c}
    c |= {'mode': 'causal' if saved['model_args']['causal'] else 'fill',
          'block_size': saved['model_args']['block_size']}
    torch_device, _ = init_device(device, c['dtype'])
    model = load_gpt(checkpoint, data, device=torch_device)
    return c, {'generator': model}, Scorer(data), []


if __name__ == "__main__":
    configure(globals(), quiet=True)
    check_knobs()
    if curves:
        draw_curves(out_dir.split(','))
        sys.exit()
    if os.path.isfile(checkpoint):
        c, models, scorer, names = open_generator()
    else:
        c, models, scorer, names = open_run()
    if export:
        export_to(export, list(models.values())[-1].cpu())
        sys.exit()
    if scorer.data.verify and 'verify' not in names:
        names.append('verify')
    if 'distinct' not in names:
        names.append('distinct')
    some = draw_or_read_prompts(scorer.data, c)
    if len(some) == 1 and sampling_knobs(c)['n_fill_steps'] > 1:
        for label, model in models.items():
            print_passes(label, model, some.for_k(k or 4), c, scorer.data.tok)
    for greedy in (False, True):
        shown = 0
        if greedy == argmax:
            shown = len(some) if prompts else num_samples
        compare(models, some.for_k(k or 4), greedy, c, scorer, names, shown)
