"""What the functions of a step return. A config file may replace each of them, and most wrong
shapes would be broadcast in silence. So configure() lets these checks follow every call, and
train_grpo.py need not speak of them."""
import copy
import dataclasses
import functools

import torch

from plumbing.process import expect, near, say

NAMES = ('collect complete sample score advantages updates_of token_weights policy_loss '
         'kl_penalty').split()
say_once = functools.cache(say)
COMPARED = []                   # [(rewards, advantages)] of this collect()
# Shapes in comments: P prompts, k completions of each, M sampled tokens.


def check_returns(script):
    """Let the check of its name follow each call of a function. script: the globals of
    train_grpo.py."""
    if not getattr(script['advantages'], 'is_checked', False):
        script['advantages'] = private(script['advantages'], script['state'])
    for name in NAMES:
        script[name] = checked(name, script[name], globals()[f'check_{name}'])
    check = functools.partial(check_token_stats, script)
    script['token_stats'] = checked('token_stats', script['token_stats'], check)


def checked(name, function, check):
    """Return a function that calls a function, and then check(what it has returned, *its words)."""
    if getattr(function, 'is_checked', False):          # a second configure() in one process
        return function

    @functools.wraps(function)
    def call(*words, **named):
        if name == 'collect':
            COMPARED.clear()
        result = function(*words, **named)
        check(result, *words, **named)
        return result
    call.is_checked = True
    return call


def private(advantages, state):
    """Return a function that calls advantages() with copies, which it may change in place, and then
    looks at what it does with groups."""
    @functools.wraps(advantages)
    def call(reward, scores):
        A = advantages(reward.clone(), dict(scores))
        if getattr(A, 'shape', None) == reward.shape:
            COMPARED.append((reward, A))
            if len(A) == A.size(1) and not call.is_tried:
                try_other_shape(advantages, reward, scores, state)
                call.is_tried = True
            if len(A) > 1 and A.sum(0).abs().max() < 1e-9 and A.sum(1).abs().max() > 1e-3:
                say_once("advantages() compares completions of different prompts: a group is a "
                         "row, reward.mean(1, keepdim=True)")
        return A
    call.is_tried = False
    return call


def try_other_shape(advantages, reward, scores, state):
    """Say if advantages() fails with fewer prompts than completions. With as many, a mean(1)
    without keepdim is taken for means of other groups, and nothing fails."""
    before = copy.deepcopy(state)
    with torch.random.fork_rng(devices=[]):
        try:
            advantages(reward[1:].clone(), {name: x[1:].clone() for name, x in scores.items()})
        except RuntimeError as e:
            if 'must match the size' in str(e):
                say("advantages() works only if there are as many prompts as completions. Does a "
                    "mean(1) lack keepdim=True?")
    state.clear()
    state.update(before)


def check_shape(name, x, shape):
    """Refuse another shape than this."""
    returned = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
    expect(returned == tuple(shape), f"{name}() returned {returned}: expected a tensor of the "
           f"shape {tuple(shape)}")


def check_scores(name, scores, k=None):
    """Refuse scores that are not {name: (P, k)}, with one shape, or have no 'reward'."""
    shapes, is_right = scores, False
    if isinstance(scores, dict):
        shapes = {x: tuple(y.shape) if torch.is_tensor(y) and y.is_floating_point() else y
                  for x, y in scores.items()}
        shape = shapes.get('reward')            # as of all others
        is_right = isinstance(shape, tuple) and len(shape) == 2 and {*shapes.values()} == {shape} \
            and k in (None, shape[1])
    expect(is_right, f"{name}() returned {shapes!r:.200}: expected a dict, {{name: floats of "
           f"the shape (prompts, {k or 'k'})}}, with 'reward'")


def check_gradient(name, losses):
    """Refuse losses from which nothing would be learned, except zeros (config/papers/rloo.py)."""
    expect(losses.requires_grad or not losses.any(), f"{name}() returned a tensor without a "
           "gradient, so nothing would be learned from it. Is it detached, or did a file call "
           "torch.set_grad_enabled(False)?")


def check_table(name, rollout):
    """Refuse a Rollout whose columns have different lengths."""
    names = [x.name for x in dataclasses.fields(rollout)]
    for x in vars(rollout).keys() - {*names, 'columns'}:
        expect(not near(x, names), f"a Rollout has no {x}{near(x, names)}")
    n = len(rollout.text_of)
    columns = {x: getattr(rollout, x) for x in ('position', 'view_of', 'advantage', 'logp_old')}
    lengths = {column: len(x) for column, x in (columns | rollout.more).items() if x is not None}
    for column, length in lengths.items():
        expect(length == n, f"{name}() returned a Rollout with {n} tokens, and its {column} has "
               f"{length} rows: expected one for each token")


# ---- the checks ----------------------------------------------------------------------------------
def check_collect(result, *words, **named):
    expect(isinstance(result, tuple) and len(result) == 2, "collect() returned a "
           f"{type(result).__name__}: expected a list of Rollouts, and their scores")
    check_scores('as its second result collect', result[1])
    for name, used in zip(('reward', 'advantage'), zip(*COMPARED)):
        now, sizes = result[1].get(name), [len(x) for x in used]
        if now is not None and len(now) == sum(sizes) and not all(
                map(torch.equal, now.split(sizes), used)):
            say_once(f"collect() has changed scores[{name!r}] after it was used: only the log sees "
                     "that (docs/idea.md)")


def check_complete(rollout, policy, prompts, k, *words, **named):
    expect(hasattr(rollout, 'text_of'), f"complete() returned a {type(rollout).__name__}: expected "
           "a Rollout")
    expect(rollout.k == k, f"complete() returned {rollout.k} completions of each prompt, and was "
           f"asked for {k}")
    expect(rollout.advantage is None, "complete() returned a Rollout with an advantage, which "
           "collect() sets later: write advantages()")
    check_table('complete', rollout)


def check_sample(token, logits, k=1, greedy=False):
    check_shape('sample', token, (len(logits), k))
    expect(not token.is_floating_point(), f"sample() returned {token.dtype}: expected ids")


def check_score(scores, rollout, *words):
    check_scores('score', scores, rollout.k)
    expect('tokens' in scores, f"score() returned {[*scores]}: expected 'tokens', too, the number "
           "of tokens of each completion")


def check_advantages(A, reward, scores):
    check_shape('advantages', A, reward.shape)
    expect(A.isfinite().all(), "advantages() returned a number that is not finite")


def check_updates_of(updates, rollouts):
    for rollout in rollouts:
        check_table('collect', rollout)
    expect(all(isinstance(update, list | tuple) for update in updates), "updates_of() returned "
           "Rollouts: expected a list of them for each update")
    for rollout in [x for update in updates for x in update]:
        check_table('updates_of', rollout)


def check_token_weights(result, rollout):
    expect(isinstance(result, tuple) and len(result) == 2, "token_weights() returned a "
           f"{type(result).__name__}: expected a weight for each token (M,), and a divisor")
    check_shape('token_weights', result[0], rollout.text_of.shape)
    expect(torch.as_tensor(result[1]).numel() == 1, "token_weights() returned a divisor of the "
           f"shape {tuple(torch.as_tensor(result[1]).shape)}: expected a number")


def check_policy_loss(result, stats, rollout):
    expect(isinstance(result, tuple) and len(result) == 2, "policy_loss() returned a "
           f"{type(result).__name__}: expected the losses (M,), and where they are clipped (M,)")
    losses, is_clipped = result
    check_shape('policy_loss', losses, stats.logp.shape)
    check_gradient('policy_loss', losses)
    check_shape('as its second result policy_loss', is_clipped, stats.logp.shape)
    expect(not is_clipped.requires_grad, "policy_loss() returned a second result with a gradient: "
           "expected the losses, and where they are clipped")


def check_kl_penalty(kl, stats):
    check_shape('kl_penalty', kl, stats.logp.shape)
    expect(len(kl) == 0 or not kl.isnan().all(), "kl_beta is above 0, and there is no reference, "
           "because kl_beta was 0 when the run began: --reference=generator opens one")
    check_gradient('kl_penalty', kl)


def check_token_stats(script, stats, policy, rollout, reference=None):
    for field, x in zip(stats._fields, stats):
        check_shape(f'in its {field} token_stats', x, rollout.text_of.shape)
    if script['entropy_coef'] > 0 and stats.logp.requires_grad:         # learn() asked
        check_gradient('in its entropy token_stats', stats.entropy)
