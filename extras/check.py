"""Check the functions of a config file, of a paper or of yours, with toy numbers: do they fit, is
their gradient that of their value, do ranks change them?

    python -m extras.check config/papers/gspo.py
    python -m extras.check mine.py --objective=mine
"""
import torch

from extras.words import words_of
import train_grpo as grpo
from fill import fill
from model import GPT
from rollout import Prompts, Rollout, TokenStats
from run.command import configure

P = 6                       # prompts
K = 4                       # completions of each
N = 24                      # sequences
T = 5                       # tokens of each


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def close(a, b):
    return torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def slope(f, x, h=1e-6):
    """Return the gradient of f(x), a number, at x, of any shape, by central finite differences."""
    steps = h * torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    gaps = [f(x + step) - f(x - step) for step in steps]
    return torch.stack(gaps).view_as(x) / (2 * h)


def has_true_gradient(f, x):
    """Return whether autograd's gradient of f(x), a number, is that of finite differences."""
    leaf = x.clone().requires_grad_()
    gradient, = torch.autograd.grad(f(leaf), leaf)
    return torch.allclose(gradient, slope(f, x), 1e-4, 1e-6)


# Each check yields (a sentence, whether it is true, what follows if it is not).


def check_adv_norm(f):
    a, b = [torch.rand(P, K).double() for _ in range(2)]
    a[0] = 0.0
    a[1] = 1.0
    b[:2] = 0.5                                 # two dead groups
    scores = {'a': a, 'b': b, 'reward': a + b}
    A = f(scores['reward'], scores)
    fits = A.shape == (P, K)
    yield 'it returns (P, k) finite numbers', fits and A.isfinite().all(), ''
    if not fits:
        return
    is_dead = grpo.dead_groups(A)[:2].all()
    yield 'groups of equal rewards have equal advantages', is_dead, 'they would not become 0'
    order = torch.randperm(P)
    moved = {name: values[order] for name, values in scores.items()}
    again = f(moved['reward'], moved)
    yield ('the order of prompts does not matter', close(again, A[order]),
           'ranks would change it')
    for values in scores.values():
        values[2, 1] = torch.nan
    is_missing = scores['reward'].isnan()
    is_nan = f(scores['reward'], scores).isnan()
    yield ('it is NaN for a missing reward (NaN), and only there', is_nan.equal(is_missing),
           'nanmean(), nanstd()')


def check_objective(f):
    lengths = torch.randint(1, T + 1, (N,))
    is_sampled = torch.arange(T) < lengths[:, None]
    logp, logp_old, logp_sampled = [(0.4 * randn(N, T) - 2) * is_sampled for _ in range(3)]
    tokens = is_sampled.long()
    A = randn(N, 1)

    def terms(x, rows=slice(None)):
        ids = tokens[rows]
        r = Rollout(None, ids, ids - 1, logp_sampled[rows])
        stats = TokenStats(x[rows], x[rows], logp_old[rows], 0 * x[rows], 0 * x[rows], -x[rows])
        return f(stats, logp_old[rows], A[rows], r)

    def loss(x):
        return (terms(x)[0] * is_sampled).sum()

    whole, numbers = terms(logp)
    fits = all(values.shape == (N, T) for values in (whole, *numbers.values()))
    yield 'loss and numbers are (N, T)', fits, ''
    first, _ = terms(logp, slice(N // 2))
    second, _ = terms(logp, slice(N // 2, N))
    yield ('half of the sequences have the loss that they have among all',
           close(torch.cat((first, second)), whole), 'ranks and micro-steps would change it')
    x = logp_old.clone().requires_grad_()
    push, = torch.autograd.grad(loss(x), x)
    is_right = (push * A * is_sampled <= 0).all() and push.any()
    yield ('before the first update good tokens become likelier, bad ones less', is_right,
           'is the sign right?')
    yield ('its gradient is that of finite differences', has_true_gradient(loss, logp),
           'right only if it stops a gradient, by detach(), as CISPO does')


def check_kl_type(f):
    logp_old, logp_ref, x = [0.4 * randn(N, T) - 2 for _ in range(3)]

    def penalty(x, ref=logp_ref):
        kl = (x - ref) ** 2
        return f(TokenStats(x, x, ref, kl, kl, -x), logp_old)

    yield 'it returns (N, T)', penalty(x).shape == (N, T), ''
    yield ('it is 0 where policy and reference are equal',
           close(penalty(x, x), torch.zeros(()).double()), 'it is no KL')
    is_true = has_true_gradient(lambda x: penalty(x).sum(), x)
    yield ('its gradient is that of finite differences', is_true,
           'right only if it stops a gradient, by detach()')


def check_likelihood(f):
    policy, reference = [GPT(5, T, 1, 2, 8, False).double() for _ in range(2)]
    for network in (policy, reference):
        for p in network.parameters():
            torch.nn.init.normal_(p, std=0.5)
    tokens = torch.randint(1, 5, (P, T))
    blank = torch.arange(T) >= torch.arange(P)[:, None] % 4
    uniforms = torch.rand(P, K, T)
    order = torch.rand(P, T)
    masks = torch.rand(P, K, 2, T)
    r = fill(policy, Prompts(tokens, blank, uniforms, order, masks, torch.arange(P), None), n_fill_steps=2)
    stats = f(r, policy, reference)
    is_zero = all(not values[~r.is_sampled].any() for values in stats)
    yield 'it returns TokenStats, which are 0 where no token was sampled', is_zero, ''
    some = torch.arange(P) % 2 == 0
    rows = some.repeat_interleave(K)
    alone = f(r.only(rows), policy, reference)
    is_equal = all(close(a[rows], b[rows]) for a, b in zip(alone, stats))
    yield ('half of the prompts have the numbers that they have among all', is_equal,
           'ranks and micro-steps would change it')
    weight = next(policy.parameters())
    gradient, = torch.autograd.grad(stats.logp.sum(), weight)

    def logp_with(values):
        weight.data = values
        return f(r, policy, None).logp.detach().sum()

    is_true = torch.allclose(gradient, slope(logp_with, weight.detach()), 1e-4, 1e-6)
    yield 'its gradient is that of finite differences', is_true, ''


CHECKS = {'adv_norm': check_adv_norm, 'objective': check_objective, 'kl_type': check_kl_type,
          'likelihood': check_likelihood}


def check(*words):
    """Check the functions that words of a command line, config files and flags, put in the place of
    ours. Return a list of (knob, sentence, whether it is true, what follows if it is not)."""
    torch.manual_seed(0)
    config, functions = configure(dict(vars(grpo)), [*words, {'rewards': {'a': 1.0, 'b': 1.0}}])
    results = []
    for knob, run_checks in CHECKS.items():
        value = config[knob]
        if value in grpo.CHOICES[knob]:
            continue
        for sentence, is_true, follows in run_checks(functions[value]):
            results.append((f'{knob} = {value!r}', sentence, bool(is_true), follows))
    return results


if __name__ == "__main__":
    results = check(*words_of(__doc__, 1))
    for knob, sentence, is_true, follows in results:
        if is_true:
            print(f'ok  {knob}: {sentence}')
        else:
            print(f'NOT {knob}: {sentence}: {follows}')
    if not results:
        print("none of these files puts a function in the place of ours")
