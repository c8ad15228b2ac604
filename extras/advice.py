"""Say where a run stands, and what would help. It reads the log and the knobs of the run.

    python -m extras.advice out-grpo

A sentence is a guess from numbers. Read the samples, too: no number shows a trick that the reward
likes and you do not (python -m extras.page out-grpo)."""
import json
import sys
from pathlib import Path

import torch

from plumbing.configurator import show_error
from plumbing.networks import load_checkpoint
from plumbing.report import verdict_of


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
    # The line to beat has a number for each held-out prompt. An older version kept a dict of lines.
    path = Path(folder, 'ckpt.pt')
    line = load_checkpoint(path)['line'] if path.exists() else None
    n = len(line) if torch.is_tensor(line) else config['eval_prompts']
    return advice(read_lines(f'{folder}/log.jsonl'), config, n)


def advice(lines, config, n):
    """Return sentences about the lines of a log. config: knobs. n: how many held-out prompts."""
    evals = [line for line in lines if 'line to beat' in line]
    if not evals:
        return ["nothing can be told: there is no evaluation yet"]
    last = evals[-1]
    goal = 'reward' if 'reward' in last else 'verify'
    sentences = [verdict_of({goal: last[goal]} | last, n)]
    if last['step'] < config['max_iters']:
        sentences.append(f"this is step {last['step']} of {config['max_iters']}: the same command "
                         "with --resume=True goes on")
    # A resumed run that measures something else has another line to beat.
    evals = [line for line in evals
             if line['line to beat'] == last['line to beat'] and goal in line]
    steps = [line for line in lines if 'ms' in line and line['step'] >= evals[0]['step']]
    if len(evals) < 2 or not steps or n < 4 or last['standard error'] == 0:
        warning = warning_of(steps[0], evals[0]) if steps else ''
        return sentences + [warning or "nothing more can be told: this takes two evaluations with "
                            "one line to beat, and prompts that differ"]
    margin = (2 + 4 / (n - 1)) * last['standard error']         # as in verdict_of()
    helps = causes(evals, steps, goal, margin) + rewards_that_stay(evals[0], last, config)
    return sentences + (helps or ["no number says what would help: read the samples"])


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


def causes(evals, steps, goal, margin):
    """Return a list of the first sentence that fits, if one does."""
    score = [line[goal] for line in evals]
    right = [line.get('eval/verify', 1) for line in evals]      # shares of right answers
    reward = [line.get('eval/reward', line[goal]) for line in evals]
    fell_by = score[0] - score[-1]
    last = evals[-1]
    rise = score[-1] - score[(len(score) - 1) * 2 // 3]         # in the last third
    recent = [line['mean_verify'] for line in steps[-10:] if 'mean_verify' in line]
    is_above = last['above it'] > margin
    # If verify() is no reward, it may ask for something else.
    is_wrong = is_above and right[-1] < 0.5 and (goal == 'verify' or recent)
    seen = sum(recent) / max(1, len(recent))    # share of right answers to training prompts
    entropy = [line['entropy'] for line in steps if line.get('entropy', 0) > 0] or [1.0]
    fell = f"the entropy fell from {entropy[0]:.3f} to {entropy[-1]:.3f}, so less is tried"
    none = 1 - last.get('eval/pass@4', 1)
    wrong = (f"{1 - right[-1]:.0%} of the answers are wrong, for {none:.0%} of the prompts all "
             "four: texts that show right ones; more max_iters")
    found = {
        f"exploited? The reward rose, and verify went {right[0]:.3f} -> {right[-1]:.3f}: read the "
        "samples; a larger kl_beta, or more weight on verify":
            right[-1] < 0.9 * right[0] and (is_above if goal == 'reward' else fell_by > margin
                                            and reward[-1] > reward[0]),
        f"{wrong}; {fell}: a larger entropy_coef": is_wrong and entropy[-1] < 0.75 * entropy[0],
        wrong: is_wrong,
        f"the score still rises ({rise:.3f} in the last third): more max_iters":
            len(score) > 2 and rise > max(0.05 * abs(score[-1]), margin / 2),
        f"the score fell by {fell_by:.3f}: a smaller learning_rate": fell_by > margin,
        f"the policy memorises: {seen:.0%} of the samples are right for prompts that it learns "
        f"from, {right[-1]:.0%} for held-out ones: more texts": seen > right[-1] + 0.25,
        "the generator knew the task before: pretrain it less, or be content":
            not is_above and goal == 'verify' and last['line to beat'] > 0.8,
        warning_of(steps[-1], last): not is_above and steps[-1]['dead_groups'] > 0.9,
        f"greedy decoding is at {last['greedy']:.3f}, so it has learned, but is not yet sure: more "
        "max_iters": not is_above and last['greedy'] - last['line to beat'] > margin,
        f"{fell}: a larger entropy_coef":
            goal == 'verify' and score[-1] < 0.9 and entropy[-1] < 0.05 * entropy[0],
        "it has learned little that it did not know: more max_iters, another generator, from more "
        "texts, or answers with steps": not is_above,
    }
    return [sentence for sentence, fits in found.items() if fits][:1]


def rewards_that_stay(first, last, config):
    """Return sentences about those of several rewards that are no better than at first."""
    weights = {name: weight for name, weight in config['rewards'].items() if weight != 0}
    sentences = []
    for name, weight in weights.items() if len(weights) > 1 else ():
        before, now = first[f'eval/{name}'], last[f'eval/{name}']
        better = now - before if weight > 0 else before - now
        if better > 0.02 * abs(before) or 0.95 < now <= 1:
            continue
        help = "a larger weight for it, which costs the others"
        if name == 'verify' and now < 0.05:
            help = "a common reward hides a rare one: verify alone first"
        elif config['adv_norm'] == 'std':
            help += "; or --adv_norm=batch, because the std of a group enlarges small differences"
        sentences.append(f"of the rewards {name} is no better ({before:.3f} -> {now:.3f}): {help}")
    return sentences


if __name__ == '__main__':
    sys.excepthook = show_error
    print(*advice_for((sys.argv[1:] or ['out-grpo'])[0]), sep='\n')
