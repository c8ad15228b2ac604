"""What the numbers of a run mean, in words, and what helps. It says only what was measured."""
import contextlib

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
            values = list(map(by_name(verify), data.own_cases(500)))
    if not values:
        return 0
    right = values.count(1) / 500
    meanings = {0: "; is it right? Else nothing that is right is ever shown",
                1: "; they are solutions: compare with plain training on them"}
    print0(f"verify() is 1 for {right:.1%} of 500 texts to learn from{meanings.get(right, '')}")
    if None in values:
        print0(f"verify() is None for {values.count(None)} of them: has it a `return` everywhere?")
    return right


def of_first_step(numbers, scores, run, start, right=0):
    """Print what can be expected, if it is not much. numbers, scores: of the first step. start: of
    the evaluation before it. right: the share of the texts that are."""
    reward = scores['reward']
    has_weight = any(run.config['rewards'].values())        # else a teacher says what is right
    is_constant = reward.min() == reward.max()
    if reward.isnan().all():
        print0("all rewards are None: nothing is learned from them")
    elif has_weight and is_constant and run.goal == 'reward':
        print0(f"all rewards are {reward.max():.3f}: a constant teaches nothing")
    elif has_weight and numbers['dead_groups'] > 0.9:
        print0("nine of ten groups teach nothing, because their rewards are equal:",
               why_equal(numbers, run))
    # (where blanks are marked, held-out prompts need not be like those to train on)
    gap = numbers.get('mean_verify', 0) - start.get('eval/verify', 0)
    if gap > 0.25 and run.data.blank_kind != 'marked':
        print0(f"the generator has memorised: {numbers['mean_verify']:.0%} of the samples are "
               "right for training prompts; more texts are needed")
    if run.goal == 'verify' and start['line to beat'] > 0.95:
        print0("little is left to learn: the line to beat is above 95 %")
    if right < 1 and start.get('eval/verify', 1) < right - 0.2:         # 1: solutions
        print0(f"{right:.0%} of the texts are right, and {start['eval/verify']:.0%} of samples: "
               "the generator has not understood the task; pretrain longer, on more careful games, "
               "on a smaller task, or on answers with steps")
    for line in forged(numbers.get('mean_forged', 0)):
        print0(line)


def forged(share):
    """Yield what it means that the policy writes what only the world writes in the texts."""
    if share > 0.02:
        yield (f"{share:.0%} of the completions have characters that only the world writes in the "
               "texts; whether they can win by them says `python -m extras.check`")


def why_equal(numbers, run):
    """Return why the completions of nearly all groups have equal rewards, and what helps."""
    limit = run.data.max_new_tokens
    if numbers.get('mean_verify', 0) > 0.9:
        return "nearly all samples are right"
    if limit and numbers['mean_ended'] < 0.1:
        return f"hardly a completion ended within max_new_tokens = {limit}; are answers longer?"
    return f"if nothing right is sampled (mean_reward {numbers['mean_reward']:.3f}), " + (
        "take easier prompts, or another model" if 'folder' in run.policy.args else
        "pretrain more, on texts of which some pass (or less, if the held-out loss rose)")


def of_the_end(config, evals, entropies):
    """Yield lines: what was measured, one cause if the run could have been better, and whether it
    worked. config: its knobs. evals: its evaluations, as in the log. entropies: of the first step
    and of the last. Less than two standard errors are noise."""
    goal = config['goal']
    first, last = evals[0], evals[-1]

    def course(name):
        return f"{first[name]:.3f} -> {last[name]:.3f}"

    score = f"{goal} {last[f'eval/{goal}']:.3f}"
    above = last['above it']
    noise = 2 * last['standard error']
    if goal == 'reward' and 'eval/verify' in last:
        yield f"verify: {course('eval/verify')}"
    if 'eval/pass@4' in last:
        yield f"pass@4: {course('eval/pass@4')}"
    if last['eval/tokens'] < 0.5 * first['eval/tokens']:
        yield f"completions became shorter: {course('eval/tokens')} tokens"
    if last.get('eval/ended', 1) < 0.5 < first.get('eval/ended', 0):
        yield f"completions run into the limit: {last['eval/ended']:.0%} ended by themselves"
    yield from forged(last.get('eval/forged', 0))
    right = last.get('eval/verify', 1)
    if above > noise and (right == 0 or right < 0.9 * first.get('eval/verify', 0)):
        yield f"exploited? The reward rose; verify: {course('eval/verify')}; read the samples"
    elif above > noise and last.get('eval/forged', 0) > 0.2:
        yield f"forged? {score}, by completions with the world's words; read the samples"
    else:
        yield from cause(config, evals, entropies)
        where = 'not above'
        if abs(above) > noise:
            where = 'above' if above > 0 else 'below'
        yield f"{score} is {where} the line to beat: {above:+.3f} +- {noise:.3f}"


def cause(config, evals, entropies):
    """Yield what could make such a run better, the first that fits, see of_the_end()."""
    last = evals[-1]
    noise = 2 * last['standard error']
    scores = [line[f"eval/{config['goal']}"] for line in evals]
    score = scores[-1]
    gain = score - scores[0]
    rise = score - scores[(len(scores) - 1) * 2 // 3]           # in the last third
    before, after = entropies
    if after > 1.2 * before > 0 and last['above it'] <= noise:
        yield (f"the entropy rose, {before:.2f} -> {after:.2f}: a smaller entropy_coef, or "
               "temperature")
    elif gain < -noise / 2:
        yield (f"the score fell by {-gain:.3f}: a third of the learning_rate, or twice the "
               "batch_size")
    elif len(scores) > 2 and gain > noise / 2 and rise > 0.05 * score:
        yield f"the score still rises (the last third: {rise:.3f}): more steps, --max_iters"
    elif after < 0.05 * before and score < 0.95:
        helps = "another --seed, or a smaller learning_rate"
        if config['entropy_floor'] == 0:
            helps = "a larger entropy_coef, with entropy_floor=1"
        yield f"the entropy fell to {after:.3f}, so little more is tried: {helps}"
    elif last['above it'] <= noise and score < 0.95:
        yield ("it has learned little that it did not know: another generator, from more texts, or "
               "answers with steps (docs/data.md, If it does not learn)")
    elif last.get('eval/pass@4', 1) < 0.9:
        yield (f"of {1 - last['eval/pass@4']:.0%} of the prompts none of four samples is right: do "
               "the texts show the like?")
