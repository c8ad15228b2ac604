"""Check the functions of a config file, of a paper or of yours, with toy numbers: do they fit, is
their gradient that of their value, do ranks change them?

    python -m extras.check config/papers/gspo.py
    python -m extras.check mine.py --objective=mine
"""
import torch

import train_grpo as grpo
from dataset import Tokenizer
from model import GPT
from rollout import Prompts, Rollout, TokenStats, complete
from run.command import configure, words_of

P, K, T = 6, 4, 5           # prompts, completions of each, tokens of a sequence
N = P * K
CLOSE = {'rtol': 1e-6, 'atol': 1e-8}


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def slope(f, x, h=1e-6):
    """Return the gradient of f(x), a number, at x, of any shape, by central finite differences."""
    steps = h * torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    return torch.stack([f(x + step) - f(x - step) for step in steps]).view_as(x) / (2 * h)


def has_true_gradient(f, x):
    """Return whether autograd's gradient of f(x), a number, is that of finite differences."""
    x = x.clone().requires_grad_()
    return torch.allclose(torch.autograd.grad(f(x), x)[0], slope(f, x.detach()), 1e-4, 1e-6)


# Each check yields (a sentence, whether it is true, what follows if it is not).


def check_adv_norm(f):
    reward = torch.rand(P, K).double()
    reward[0] = 0.0
    reward[1] = 1.0
    scores = {'a': reward.clone(), 'b': torch.rand(P, K).double()}
    scores['b'][:2] = 0.5                       # two dead groups
    scores['reward'] = reward = scores['a'] + scores['b']
    A = f(reward, scores)
    fits = A.shape == (P, K)
    yield 'it returns (P, k) finite numbers', fits and A.isfinite().all(), ''
    if not fits:
        return
    is_dead = grpo.dead_groups(A)[:2].all()
    yield 'groups of equal rewards have equal advantages', is_dead, 'they would not become 0'
    some = {name: values.clone() for name, values in scores.items()}
    for values in some.values():
        values[2, 1] = torch.nan
    yield ('it is NaN for a missing reward (NaN), and only there',
           f(some['reward'], some).isnan().equal(some['reward'].isnan()), 'nanmean(), nanstd()')
    order = torch.randperm(P)
    again = f(reward[order], {name: values[order] for name, values in scores.items()})
    yield ('the order of prompts does not matter', torch.allclose(again, A[order], **CLOSE),
           'ranks would change it')


def check_objective(f):
    lengths = torch.randint(1, T + 1, (N,))
    is_sampled = torch.arange(T) < lengths[:, None]
    logp, logp_old, logp_sampled = [(0.4 * randn(N, T) - 2) * is_sampled for _ in range(3)]
    A = randn(N, 1)

    def loss(x, rows=slice(None)):
        r = Rollout(None, is_sampled[rows].long(), is_sampled[rows].long() - 1, logp_sampled[rows],
                    None, is_sampled[rows].long())
        return f(x[rows], logp_old[rows], A[rows], r)

    whole, numbers = loss(logp)
    fits = all(values.shape == (N, T) for values in (whole, *numbers.values()))
    yield 'loss and numbers are (N, T)', fits, ''
    halves = [loss(logp, rows)[0] for rows in (slice(N // 2), slice(N // 2, N))]
    yield ('half of the sequences have the loss that they have among all',
           torch.allclose(torch.cat(halves), whole, **CLOSE),
           'ranks and micro-steps would change it')
    x = logp_old.clone().requires_grad_()
    push, = torch.autograd.grad((loss(x)[0] * is_sampled).sum(), x)
    yield ('before the first update good tokens become likelier, bad ones less',
           bool((push * A * is_sampled <= 0).all() and push.any()), 'is the sign right?')
    true = has_true_gradient(lambda x: (loss(x)[0] * is_sampled).sum(), logp)
    yield ('its gradient is that of finite differences', true,
           'right only if it stops a gradient, by detach(), as CISPO does')


def check_kl_type(f):
    logp_old, logp_ref = [(0.4 * randn(N, T) - 2) for _ in range(2)]

    def penalty(x, ref=logp_ref):
        return f(TokenStats(x, x, ref, (x - ref) ** 2, -x), logp_old)

    x = 0.4 * randn(N, T) - 2
    yield 'it returns (N, T)', penalty(x).shape == (N, T), ''
    yield ('it is 0 where policy and reference are equal',
           torch.allclose(penalty(x, x), torch.zeros(()).double(), **CLOSE), 'it is no KL')
    yield ('its gradient is that of finite differences',
           has_true_gradient(lambda x: penalty(x).sum(), x),
           'right only if it stops a gradient, by detach()')


def check_likelihood(f):
    policy, reference = [GPT(5, T, 1, 2, 8, False).double() for _ in range(2)]
    for p in [*policy.parameters(), *reference.parameters()]:
        torch.nn.init.normal_(p, std=0.5)
    tokens = torch.randint(1, 5, (P, T))
    blank = torch.arange(T) >= torch.arange(P)[:, None] % 4
    prompts = Prompts(tokens, blank, torch.rand(P, K, T), torch.rand(P, T), torch.rand(P, K, 0, T),
                      torch.rand(P, K, 2, T), torch.arange(P), [{}] * P,
                      Tokenizer('char', 'abcd'), False)
    r = complete(policy, prompts, 2)
    stats = f(r, policy, reference, 1.0)
    yield ('it returns TokenStats, which are 0 where no token was sampled',
           all(not values[~r.is_sampled].any() for values in stats), '')
    some = torch.arange(P) % 2 == 0
    rows = some.repeat_interleave(K)
    alone = f(r.of_prompts(some), policy, reference, 1.0)
    yield ('half of the prompts have the numbers that they have among all',
           all(torch.allclose(a, b[rows], **CLOSE) for a, b in zip(alone, stats)),
           'ranks and micro-steps would change it')

    def logp_with(bias):
        x = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
        torch.nn.utils.vector_to_parameters(x + bias * direction, policy.parameters())
        total = f(r, policy, None, 1.0).logp.sum().item()
        torch.nn.utils.vector_to_parameters(x, policy.parameters())
        return total

    direction = randn(sum(p.numel() for p in policy.parameters()))
    parts = torch.autograd.grad(stats.logp.sum(), list(policy.parameters()), allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(parts, policy.parameters())]
    exact = torch.nn.utils.parameters_to_vector(parts) @ direction
    found = (logp_with(1e-6) - logp_with(-1e-6)) / 2e-6
    yield 'its gradient is that of finite differences', abs(exact - found) < 1e-4, ''


CHECKS = {'adv_norm': check_adv_norm, 'objective': check_objective, 'kl_type': check_kl_type,
          'likelihood': check_likelihood}


def check(*words):
    """Check the functions that words of a command line, config files and flags, put in the place of
    ours. Return a list of (knob, sentence, whether it is true, what follows if it is not)."""
    torch.manual_seed(0)
    config, functions = configure(dict(vars(grpo)), [*words, {'rewards': {'a': 1.0, 'b': 1.0}}])
    results = []
    for knob, run_checks in CHECKS.items():
        if config[knob] not in grpo.CHOICES[knob]:
            for sentence, is_true, follows in run_checks(functions[config[knob]]):
                results.append((f'{knob} = {config[knob]!r}', sentence, bool(is_true), follows))
    return results


if __name__ == "__main__":
    results = check(*words_of(__doc__, 1))
    for knob, sentence, is_true, follows in results:
        print(f'ok  {knob}: {sentence}' if is_true else f'NOT {knob}: {sentence}: {follows}')
    if not results:
        print("none of these files puts a function in the place of ours")
