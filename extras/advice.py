"""Say where runs stand, and what would help. It reads log.jsonl, config.json and samples.jsonl.

    python -m extras.advice out-grpo

A sentence is a guess from numbers. Read the samples, too: no number shows a trick that the reward
likes and you do not (python -m extras.page out-grpo)."""
import itertools
import json
import math
import shlex
import sys
from pathlib import Path
from statistics import fmean, stdev

if not __package__:
    sys.exit("expected: python -m extras.advice FOLDER ...")

from extras.check import words_for, words_or_help
from plumbing.configurator import show_error
from plumbing.networks import load_checkpoint
from plumbing.report import verdict_of

# To try of a knob: the usual value, or, where this is no change for it, so many times more (less).
USUAL = {'learning_rate': (1e-3, 3), 'kl_beta': (0.1, 3), 'entropy_coef': (0.05, 3),
         'temperature': (1, 1.5), 'group_size': (16, 2), 'max_iters': (300, 2), 'top_k': (50, 3),
         'top_p': (1, 1), 'warmup_iters': (10, 3)}


def must_be_run(folder):
    """Return the folder of a run that has begun."""
    if not Path(folder, 'config.json').exists():
        runs = sorted(str(path.parent) for path in Path().glob('*/config.json'))
        sys.exit(f"there is no run {folder}; here are: {', '.join(runs) or 'none'}")
    return folder


def read_lines(path):
    """Return the objects of a file of JSON lines, without a last line that a run is writing, or
    none where a run has not begun the file."""
    text = Path(path).read_text('utf-8') if Path(path).exists() else ''
    return [json.loads(line) for line in text.split('\n')[:-1]]


def advice_for(folder):
    """Return sentences about the run in a folder."""
    config = json.loads(Path(must_be_run(folder), 'config.json').read_text('utf-8'))
    path = Path(folder, 'ckpt.pt')
    line = load_checkpoint(path)['line'] if path.exists() else None
    # The line to beat has a number for each held-out prompt. The first checkpoint has no line.
    n = config['eval_prompts'] if line is None else len(line)
    log, samples = [read_lines(f'{folder}/{name}.jsonl') for name in ('log', 'samples')]
    return advice(log, config, n, samples)


def advice(lines, config, n, samples):
    """Return sentences about the lines of a log. config: knobs. n: how many held-out prompts.
    samples: completions, of evaluations four of each prompt."""
    evals = [line for line in lines if 'line to beat' in line]
    if not evals:
        return ["nothing can be told: there is no evaluation yet"]
    last = evals[-1]
    goal = 'reward' if 'reward' in last else 'verify'
    # A resumed run that measures something else has another line to beat.
    evals = [line for line in evals if line['line to beat'] == last['line to beat']
             and goal in line and all(f'eval/{name}' in line for name in config['rewards'])]
    steps = [line for line in lines if 'ms' in line and line['step'] >= evals[0]['step']]
    sentences = [f"nothing can be told yet: {goal} is {last[goal]:.3f} at the first evaluation"]
    if len(evals) > 1:
        sentences = [verdict_of({goal: last[goal]} | last, n)]
    if last['step'] < config['max_iters']:
        sentences.append(f"this is step {last['step']} of {config['max_iters']}: the same command "
                         "with --resume=True goes on")
    samples = [sample for sample in samples
               if sample['step'] >= evals[0]['step'] and 'advantage' not in sample['scores']]
    groups = [[*group] for _, group in itertools.groupby(
        samples, lambda sample: (sample['step'], sample['prompt']))]
    if not steps or not groups:
        return sentences
    return sentences + likely_cause(evals, steps, goal, n, config, groups)


def range_of(group, name):
    """Return how far apart the scores of samples are."""
    values = [sample['scores'][name] for sample in group]
    return max(values) - min(values)


def texts_of_knobs(config):
    """Return {'larger group_size': 'a larger group_size (now 16, try 32)', ...}."""
    texts = {}
    for knob, (usual, factor) in USUAL.items():
        now = config[knob]
        if knob == 'learning_rate' and 'chat_template' in config:       # a language model
            usual = 2e-5
        for size, value in (('larger', max(usual, now * factor)),
                            ('smaller', min(usual, now / factor))):
            value = type(now)(float(f'{value:.2g}'))            # two digits
            texts[f'{size} {knob}'] = f'a {size} {knob} (now {now:g}, try {value:g})'
    return texts


# ---- what the numbers say ------------------------------------------------------------------------


def likely_cause(evals, steps, goal, n, config, groups):
    """Return a list of the first sentence that fits. The surest come first: a later one
    often follows from an earlier one. Their {names} are variables of this function, and knobs."""
    first, last, best = evals[0], evals[-1], max(evals, key=lambda line: line[goal])
    begin = steps[0]                            # of the policy before it has learned
    now = {name: fmean(line.get(name, 0) for line in steps[-10:]) for name in steps[-1]}
    rise = last[goal] - evals[(len(evals) - 1) * 2 // 3][goal]              # in the last third
    margin = 3 * last['standard error'] or math.inf     # of equal scores nothing is known
    top, score = best[goal], last[goal]
    is_above = last['above it'] > margin
    is_short = len(evals) > 1 and not is_above          # it has learned, but not enough
    dead = now['dead_groups']
    is_dead = dead > 0.75 and not is_above
    was, right = [line.get('eval/verify', 1) for line in (first, last)]     # share of right answers
    before, after = first['eval/reward'], last['eval/reward']
    seen = now['mean_reward']
    # Only of tokens that learn. Where there are none, nothing is known.
    entropies = [line['entropy'] for line in steps if line.get('entropy', 0) > 0] or [1.0]
    start, end = fmean(entropies[:3]), fmean(entropies[-10:])
    # An evaluation shows eight prompts.
    equal = fmean(len({sample['completion'] for sample in group}) == 1 for group in groups[-8:])
    ranges = [range_of(group, 'reward') for group in groups]
    differ = [name for name in config['rewards'] if any(range_of(x, name) for x in groups)]
    # Where a reward is equal in all groups, no weight helps.
    worse = [name for name in differ
             if config['rewards'][name] * (last[f'eval/{name}'] - first[f'eval/{name}']) < 0]
    # Less can be chance: the mean of a step is about as sure as that of an evaluation.
    rewards = [line['mean_reward'] for line in steps[-10:]]
    chance = 3 * stdev(rewards) if len(rewards) == 10 else math.inf
    fell = before - after > chance
    is_lost = fell or after < before and (
        now.get('kl', 0) > 1 or is_dead and begin['dead_groups'] <= 0.75)
    is_warming = config['warmup_iters'] >= config['max_iters']
    scores = {line['eval/reward'] for line in evals}
    is_same = is_short and (
        len(scores) == 1 and now.get('kl', 0) < 0.01 or now.get('kl', 1) < 1e-5)
    experiment = ''
    is_bare = all(word.startswith('--') for word in config['words'])    # no file of an experiment
    if is_bare and right < 0.1 and config['blank_kind'] == 'random' and (
            config['dataset'] != 'arithmetic'):
        experiment = shlex.join(words_for([f"--dataset={config['dataset']}"]))
    found = {
        "verify is {right:.3f}, and random characters are blank (blank_kind = 'random'): python "
        'train_grpo.py {experiment}':
            experiment,
        'the weight of verify is negative ({config[rewards]}), so wrong answers are learned':
            is_short and config['rewards'].get('verify', 0) < 0,
        'rewards of a prompt differ, and all advantages are 0: is advantages() right?':
            begin['dead_groups'] == dead == 1 and min(ranges[-8:]) > 0,
        '{goal} is {last[greedy]:.3f} for the likeliest tokens, {score:.3f} for samples: {smaller '
        'temperature}':
            is_short and config['temperature'] > 1 and last['greedy'] - score > margin,
        'only the likeliest tokens are sampled: {larger top_k}':
            is_short and 0 < config['top_k'] < 4,
        'only the likeliest tokens are sampled: {larger top_p}':
            is_short and config['top_p'] < 0.5,
        'the KL holds the policy at its reference ({now[kl]:.1e} nats): {smaller kl_beta}':
            is_short and config['kl_beta'] > 1 and now.get('kl', 1) < 0.05,
        'completions differ in {differ[0]}, but not in the weighted sum: other weights (now '
        '{config[rewards]}, try {differ[0]} alone, with 1)':
            is_dead and differ and not any(ranges),
        'memorised, or the held-out prompts are harder, the reward is {seen:.3f} for prompts that '
        'it learns from, {after:.3f} for others: more texts':
            seen - after > max(0.25, 0.25 * abs(seen), chance),
        'nothing is left to learn, the reward is {seen:.3f} for prompts that it learns from, '
        '{after:.3f} for others: harder prompts, or be content':
            0.95 < min(seen, after) <= 1 and dead > 0.5,
        'exploited? The reward rose, and verify went {was:.3f} -> {right:.3f}, read the samples: '
        '{larger kl_beta}; a larger weight of verify (now {config[rewards]}, try 3 times as much, '
        'or 1)':
            was - right > n ** -0.5 and after > before,
        'the entropy went {start:.3f} -> {end:.3f}, so the policy is undecided: {smaller '
        'entropy_coef}; {smaller learning_rate}':
            is_short and config['entropy_coef'] > 0 and (
                end > 1.5 * start or end > 1.1 * start and fell),
        '{goal} was {top:.3f} at step {best[step]}: {smaller learning_rate}; plugins/best.py keeps '
        'the best checkpoint':
            top - last[goal] > max(margin, 0.1 * (top - first[goal])),
        'collapsed: reward {before:.3f} -> {after:.3f}, dead groups {begin[dead_groups]:.0%} -> '
        '{dead:.0%}: {smaller learning_rate}':
            is_short and is_lost,
        'rewards of a prompt differ by less than 0.001, and advantages are divided by their std + '
        '1e-4: weights (now {config[rewards]}) that make the differences about 1':
            0 < max(ranges) < 1e-3 and config['adv_norm'] != 'none',
        '{equal:.0%} of the prompts get equal completions, and {dead:.0%} of the groups are dead: '
        '{larger group_size}; {larger temperature}':
            is_dead and equal > 0.5,
        'completions went from {begin[mean_tokens]:.1f} to {now[mean_tokens]:.1f} tokens: read '
        'the samples':
            not 0.5 < now['mean_tokens'] / begin['mean_tokens'] < 2,
        'different completions get rewards that are equal in seven digits (mean {seen:.3g}), and '
        '{dead:.0%} of the groups are dead: {larger group_size}; easier or harder prompts; a '
        'reward that tells them apart':
            is_dead and ranges[-8:].count(0) > 4,
        'the policy has hardly moved: {larger learning_rate}':
            is_same and (not is_warming or config['learning_rate'] < 1e-4),
        'the run ends while the rate warms up: {smaller warmup_iters}; {larger max_iters}':
            is_short and is_warming,
        'the score still rises ({rise:.3f} in the last third): {larger max_iters}':
            len(evals) > 2 and rise > max(0.05 * abs(last[goal]), margin),
        'of the rewards {worse[0]} is no better: a larger weight (now {config[rewards]}, try 3 '
        'times as much), which costs the others':
            len(config['rewards']) > 1 and worse,
        'the entropy went {start:.3f} -> {end:.3f}, so less is tried: {larger entropy_coef}; '
        '{smaller learning_rate}':
            goal == 'verify' and right < 0.9 and end < 0.05 * start,
        'it has learned little that it did not know: {larger max_iters}; another generator, from '
        'more texts; answers with steps':
            is_short,
        'no number says what would help: read the samples':
            True,
    }
    names = locals() | texts_of_knobs(config)
    return [sentence.format_map(names) for sentence, fits in found.items() if fits][:1]


if __name__ == '__main__':
    sys.excepthook = show_error
    for folder in words_or_help(__doc__) or ['out-grpo']:
        print(f'{folder}:', *advice_for(folder), sep='\n')
