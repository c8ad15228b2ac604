"""What the numbers of a run mean, in words, and what helps. It says only what was measured."""
import contextlib
import inspect

import numpy as np

from run.checkers import is_answer
from run.command import by_name
from run.machine import print0


def of_texts(run):
    """Print what there is to learn from, and what is right. Return the share of the texts that are
    right by their own checker, as far as an answer is one: a world's words in it are not the
    player's. 0 if nobody knows."""
    data = run.data
    verify = run.scorer.verify
    is_right = {None: "nothing says what is right", is_answer: "the answer is right"}
    print0(f"{len(data.rows_of['train'])} texts to learn from, {len(data.rows_of['val'])} held "
           f"out; up to {data.block_size} tokens; "
           f"{is_right.get(verify, 'verify() says what is right')}")
    if 'folder' in run.policy.args and data.examples[0].get('prompt', '').endswith(' '):
        print0("the first prompt ends in a space, which most tokenizers put in front of the next "
               "word: the model has seldom seen text that goes on from there")
    values = []
    if verify not in is_right and data.examples[0]:
        with contextlib.suppress(Exception, SystemExit):    # the evaluation names what fails
            values = list(map(by_name(verify), data.own_cases(200)))
    if not values:
        return 0
    right = np.mean([value == 1 for value in values])
    meanings = {0: "; is it right? Else nothing that is right is ever shown",
                1: "; they are solutions: compare with plain training on them"}
    print0(f"verify() is 1 for {right:.0%} of them{meanings.get(right, '')}")
    return right


def of_first_step(numbers, scores, run, progress, right=0):
    """Print what can be expected, if it is not much. numbers, scores: of the first step. right: the
    share of the texts that are."""
    start = progress.means[0]
    reward = scores['reward']
    has_weight = any(run.config['rewards'].values())        # else a teacher says what is right
    if reward.isnan().all():
        print0("all rewards are None: nothing is learned from them")
    elif has_weight and reward.min() == reward.max():
        print0(f"all rewards are {reward.max():.3f}: a constant teaches nothing")
    elif has_weight and numbers['dead_groups'] > 0.9:
        print0("nine of ten groups teach nothing, because their rewards are equal:",
               why_equal(numbers, run))
    # (where blanks are marked, held-out prompts need not be like those to train on)
    gap = numbers.get('mean_verify', 0) - start.get('eval/verify', 0)
    if gap > 0.25 and run.data.blank_kind != 'marked':
        print0(f"the generator has memorised: {numbers['mean_verify']:.0%} of the samples are "
               "right for training prompts; more texts are needed")
    if progress.goal == 'verify' and np.nanmean(progress.line) > 0.95:
        print0("little is left to learn: the line to beat is above 95 %")
    if 'mean_turns' in numbers and start.get('eval/verify', 1) < right - 0.2:
        print0(f"the texts win {right:.0%} of their games, the generator "
               f"{start['eval/verify']:.0%}: it has not understood the world; pretrain longer, or "
               "on more careful games")
    say_forged(numbers.get('mean_forged', 0), run)


def say_forged(share, run):
    """Print that the policy writes what only the world writes in the texts."""
    verify = run.scorer.verify
    looks = verify and 'sampled' in inspect.signature(verify).parameters
    if share > 0 and not looks:
        print0(f"{share:.1%} of the completions have characters that only the world writes in the "
               "texts; a verify() that takes `sampled`, without them, is not fooled")


def why_equal(numbers, run):
    """Return why the completions of nearly all groups have equal rewards, and what helps."""
    limit = run.data.max_new_tokens
    if limit and numbers['mean_ended'] < 0.1:
        return f"hardly a completion ended within max_new_tokens = {limit}; are answers longer?"
    return f"if nothing right is sampled (mean_reward {numbers['mean_reward']:.3f}), " + (
        "take easier prompts, or another model" if 'folder' in run.policy.args else
        "pretrain more, on texts of which some pass (or less, if the held-out loss rose)")


def of_the_end(run, progress, entropies):
    """Print whether the run worked, and what its numbers point at. entropies: of the first step and
    of the last. Less than two standard errors are noise."""
    steps = list(progress.means)
    first, last = progress.means[steps[0]], progress.means[steps[-1]]
    goal = f'eval/{progress.goal}'
    _, above, error = progress.above().values()
    is_above = above > 2 * error
    if 'eval/pass@4' in last and run.scorer.verify is not is_answer:
        print0(f"pass@4: {first['eval/pass@4']:.3f} -> {last['eval/pass@4']:.3f}")
    before, after = entropies
    if after > 1.2 * before > 0 and not is_above:
        helps = 'a smaller entropy_coef, or temperature'
        if run.config['entropy_coef'] == 0:
            helps = 'a lower temperature'
        print0(f"the entropy rose, {before:.2f} -> {after:.2f}: {helps}")
    middle = progress.means[steps[len(steps) * 2 // 3]]
    if after < 0.05 * before and last[goal] < 0.95 and last[goal] - middle.get(goal, 0) < 0.01:
        print0(f"the entropy fell to {after:.3f}, and the score stands still: a larger "
               "entropy_coef, with entropy_floor=1")
    if last['eval/tokens'] < 0.5 * first['eval/tokens']:
        print0(f"completions became shorter: {first['eval/tokens']:.1f} -> "
               f"{last['eval/tokens']:.1f} tokens")
    if last.get('eval/ended', 1) < 0.5 < first.get('eval/ended', 0):
        print0(f"completions run into the limit: {last['eval/ended']:.0%} ended by themselves")
    say_forged(last.get('eval/forged', 0), run)
    if is_above and last.get('eval/verify', 1) < 0.9 * first.get('eval/verify', 0):
        print0(f"exploited? The reward rose, and verify fell: {first['eval/verify']:.3f} -> "
               f"{last['eval/verify']:.3f}; read the samples")
    else:
        words = 'above' if is_above else 'not above'
        print0(f"{progress.goal} {np.nanmean(progress.now):.3f} is {words} the line to beat: "
               f"{above:+.3f} +- {2 * error:.3f}")
