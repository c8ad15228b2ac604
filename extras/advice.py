"""Say where a run stands, and what would help. It reads log.jsonl, config.json and samples.jsonl.

    python -m extras.advice out-grpo

A sentence is a guess from numbers. Read the samples, too: no number shows a trick that the reward
likes and you do not (python -m extras.page out-grpo)."""
import itertools
import json
import math
import sys
from pathlib import Path
from statistics import fmean

if not __package__:
    sys.exit("expected: python -m extras.advice FOLDER")

from extras.check import words_for, words_or_help
from plumbing.configurator import show_error
from plumbing.networks import load_checkpoint
from plumbing.report import verdict_of

# Values to try of a knob: the next one that is larger, or smaller.
VALUES = {
    'learning_rate': (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2),
    'kl_beta': (0.01, 0.03, 0.1, 0.3, 1),
    'entropy_coef': (0.02, 0.05, 0.1, 0.3),
    'temperature': (1, 1.5),
    'group_size': (8, 16, 32, 64),
    'max_iters': (100, 300, 600, 1000, 2000, 5000, 10_000),
}


def must_be_run(folder):
    """Return the folder of a run that has begun."""
    if not Path(folder, 'log.jsonl').exists():
        runs = sorted(str(path.parent) for path in Path().glob('out*/log.jsonl'))
        sys.exit(f"there is no run {folder}; here are: {', '.join(runs) or 'none'}")
    return folder


def read_lines(path):
    """Return the objects of a file of JSON lines, without a last line that a run is writing."""
    return [json.loads(line) for line in Path(path).read_text('utf-8').split('\n')[:-1]]


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
    evals = [line for line in evals
             if line['line to beat'] == last['line to beat'] and goal in line]
    steps = [line for line in lines if 'ms' in line and line['step'] >= evals[0]['step']]
    sentences = [f"nothing can be told yet: {goal} is {last[goal]:.3f} at the first evaluation"]
    if len(evals) > 1:
        sentences = [verdict_of({goal: last[goal]} | last, n)]
    if last['step'] < config['max_iters']:
        sentences.append(f"this is step {last['step']} of {config['max_iters']}: the same command "
                         "with --resume=True goes on")
    if not steps:
        return sentences
    samples = [sample for sample in samples
               if sample['step'] >= evals[0]['step'] and 'advantage' not in sample['scores']]
    groups = [[*group] for _, group in itertools.groupby(
        samples, lambda sample: (sample['step'], sample['prompt']))]
    helps = [*causes(evals, steps, goal, n, config, groups)][:1]
    if len(evals) > 1:
        helps += rewards_that_stay(evals[0], last, config, groups)
    return sentences + (helps or ["no number says what would help: read the samples"])


def with_values(sentence, config):
    """Return a sentence 'what is so: change; change', with the value of each knob and one to try;
    or '' if nothing is left to try."""
    what, _, changes = sentence.rpartition(': ')
    texts = []
    for change in changes.split('; '):
        *_, size, knob = change.split()
        if knob in VALUES:
            now = config[knob]
            values = [x for x in VALUES[knob] if (x < now if size == 'smaller' else x > now)]
            if not values:
                continue
            change += f" (now {now:g}, try {values[-1 if size == 'smaller' else 0]:g})"
        texts.append(change)
    return f"{what}: {'; '.join(texts)}" if texts else ''


def range_of(group, name):
    """Return how far apart the scores of samples are."""
    values = [sample['scores'][name] for sample in group]
    return max(values) - min(values)


# ---- what the numbers say ------------------------------------------------------------------------


def causes(evals, steps, goal, n, config, groups):
    """Yield the sentences that fit, the surest first: a later one often follows from an earlier
    one. Their {names} are variables of this function."""
    first, last, best = evals[0], evals[-1], max(evals, key=lambda line: line[goal])
    is_later = len(evals) > 1
    score, top = last[goal], best[goal]
    rise = score - evals[(len(evals) - 1) * 2 // 3][goal]                   # in the last third
    now = {name: fmean(line.get(name, 0) for line in steps[-10:]) for name in steps[-1]}
    dead, reward = now['dead_groups'], now['mean_reward']
    growth = now['mean_tokens'] / steps[0]['mean_tokens']
    error, above = last['standard error'], last['above it']
    margin = (2 + 4 / (n - 1)) * error if n > 3 and error > 0 else math.inf     # as verdict_of()
    is_above = above > margin
    is_dead = dead > 0.75 and not is_above
    right = last.get('eval/verify', 1)          # share of right answers
    none = 1 - last.get('eval/pass@4', 1)
    entropy = [line['entropy'] for line in steps if line.get('entropy', 0) > 0] or [1.0]
    entropy_now = entropy[-1]
    # An evaluation shows eight prompts.
    equal = fmean(len({sample['completion'] for sample in group}) == 1 for group in groups[-8:])
    ranges = [range_of(group, 'reward') for group in groups]
    spread = max(ranges)
    is_same = all(line['eval/reward'] == first['eval/reward'] and line['greedy'] == first['greedy']
                  for line in evals)
    is_as_long = abs(now['mean_tokens'] / last['eval/tokens'] - 1) < 0.2
    weight = config['rewards'].get('verify', 0)
    heavier = 3 * weight or 1
    experiment = ''
    if right < 0.1 and words_for(config['words']) != config['words']:
        experiment = ' '.join(words_for([f"--dataset={config['dataset']}"]))

    memorised, reached = {}, {}
    for name, w in config['rewards'].items():
        seen, held = now[f'mean_{name}'], last[f'eval/{name}']
        both = f'{name} is {seen:.3f} for prompts that it learns from, {held:.3f} for others'
        memorised[f'memorised, {both}: more texts'] = is_as_long and (
            w * (seen - held) > 0.25 * abs(w) * max(1, abs(seen), abs(held)))
        reached[f'nothing is left to learn, {both}: harder prompts, or be content'] = (
            0.95 < min(seen, held) <= 1 and dead > 0.5)
    found = {
        'verify is {right:.3f}, and random characters are blank, because the command names no '
        'experiment: python train_grpo.py {experiment}':
            experiment,
        **memorised,
        'the policy has hardly moved: a larger learning_rate':
            is_later and dead < 1 and (is_same or steps[-1].get('kl', 1) < 1e-5),
        'exploited? The reward rose, and verify went {first[eval/verify]:.3f} -> {right:.3f}, '
        'read the samples: a larger kl_beta; a larger weight of verify (now {weight:g}, try '
        '{heavier:g})':
            right < 0.9 * first.get('eval/verify', 0) and abs(above) > margin
            and last['eval/reward'] > first['eval/reward'],
        '{goal} was {top:.3f} at step {best[step]}: a smaller learning_rate; plugins/best.py keeps '
        'the best checkpoint':
            top - score > max(margin, 0.1 * (top - first[goal])),
        'the policy has collapsed to one completion of each prompt: a smaller learning_rate; a '
        'larger entropy_coef':
            is_dead and equal > 0.9 and entropy[0] > 0.3 and config['temperature'] > 0.5,
        '{right:.0%} of the answers are right, for {none:.0%} of the prompts none of four: texts '
        'that show right ones; more max_iters':
            is_above and right < 0.5 and (goal == 'verify' or 'mean_verify' in now),
        'the score still rises ({rise:.3f} in the last third): more max_iters':
            len(evals) > 2 and rise > max(0.05 * abs(score), margin),
        **reached,
        'rewards are float32, which has seven digits, and their mean is {reward:.3g}: subtract '
        'what all have':
            is_dead and spread == 0 and abs(reward) > 1e6,
        'rewards of a prompt differ by at most {spread:.1e}, and advantages are divided by their '
        'std + 1e-4: weights (now {config[rewards]}) that make the differences about 1':
            0 < spread < 1e-3 and config['adv_norm'] != 'none',
        '{equal:.0%} of the prompts get equal completions, and {dead:.0%} of the groups are dead: '
        'a larger group_size; a higher temperature':
            is_dead and equal > 0.5,
        'different completions get equal rewards (mean {reward:.3g}), and {dead:.0%} of the groups '
        'are dead: a larger group_size; easier or harder prompts; a reward that tells them apart':
            is_dead and ranges[-8:].count(0) > 4,
        'greedy decoding is at {last[greedy]:.3f}, so it has learned, but is not yet sure: more '
        'max_iters':
            not is_above and last['greedy'] - last['line to beat'] > margin,
        'the entropy went {entropy[0]:.3f} -> {entropy_now:.3f}, so less is tried: a larger '
        'entropy_coef; a smaller learning_rate':
            goal == 'verify' and score < 0.9 and entropy_now < 0.05 * entropy[0],
        'completions went from {steps[0][mean_tokens]:.1f} to {now[mean_tokens]:.1f} tokens: read '
        'the samples':
            not 0.5 < growth < 2 and (right < 0.9 or goal == 'reward'),
        'it has learned little that it did not know: more max_iters; another generator, from more '
        'texts; answers with steps':
            is_later and not is_above,
    }
    for sentence, fits in found.items():
        if fits and (text := with_values(sentence, config)):
            yield text.format_map(locals())


def rewards_that_stay(first, last, config, groups):
    """Yield sentences about those of several rewards that are no better than at first."""
    for name, weight in config['rewards'].items():
        before, now = first[f'eval/{name}'], last[f'eval/{name}']
        is_better = weight * (now - before) > 0.02 * abs(weight * before)
        if len(config['rewards']) == 1 or weight == 0 or is_better or 0.95 < now <= 1:
            continue
        help = f"a larger weight (now {weight:g}, try {3 * weight:g}), which costs the others"
        if name == 'verify' and now < 0.05:
            help = "a common reward hides a rare one: verify alone first"
        elif not any(range_of(group, name) for group in groups):
            help = "no weight helps, because it is equal for all completions of a prompt"
        elif config['adv_norm'] == 'std':
            help += "; or --adv_norm=batch, because the std of a group enlarges small differences"
        yield f"of the rewards {name} is no better ({before:.3f} -> {now:.3f}): {help}"


if __name__ == '__main__':
    sys.excepthook = show_error
    print(*advice_for((words_or_help(__doc__) or ['out-grpo'])[0]), sep='\n')
