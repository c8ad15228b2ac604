"""Check the functions of a config file, of a paper or of yours, with toy numbers and a toy run: do
they fit, is their gradient that of their value, do ranks change them? Or a task, before anything is
trained: its texts, verify(), rewards and reply(), see check_task.py.

    python -m extras.check examples/worlds/lock.py
    python -m extras.check config/papers/gspo.py
    python -m extras.check config/grpo_think.py mine.py --objective=mine

The toy run has the dataset, the blanks and the world of the words, and a tiny random network."""
import contextlib
import io
import zlib
from dataclasses import replace
from types import SimpleNamespace

import torch

from extras.words import words_of
import train_grpo as grpo
from dataset import Dataset, make_tokenizer, read_texts
from extras.check_task import check_task, is_task
from fill import fill
from judge import Scorer
from model import GPT
from rollout import Prompts, Rollout, TokenStats
from run.command import configure

P = 6                       # prompts
K = 4                       # completions of each
T = 5                       # tokens of a completion, where a check makes its own
TOY = {'batch_size': 3, 'gradient_accumulation_steps': 2, 'mini_batches': 1, 'group_size': K,
       'chat_template': False, 'rewards': {'verify': 1.0, 'b': 1.0}}


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


# ---- a toy run -----------------------------------------------------------------------------------


def tiny(*args):
    """Return a GPT all of whose weights matter."""
    network = GPT(*args).double()
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return network


def share_of(text, salt):
    """Return 0, 1/3, 2/3 or 1, by chance, but always the same for a text."""
    return zlib.crc32(f'{salt} {text}'.encode()) % 4 / 3


@contextlib.contextmanager
def toy_run(config, functions):
    """Make the knobs those of the words, for a while. Yield policy, scorer, data, Prompts of a
    step, and a Rollout of them all."""
    before = {name: getattr(grpo, name) for name in grpo.DEFAULTS}
    rules = dict(vars(grpo.rules))
    vars(grpo).update({name: config[name] for name in before})
    grpo.n_fill_steps = max(2, grpo.n_fill_steps)
    for knob in grpo.RULES:
        setattr(grpo.rules, knob, functions.get(config[knob], grpo.RULES[knob]))
    try:
        train, held_out, _, reply = read_texts(grpo.dataset)
        reply = functions.get('reply', reply)
        tok = make_tokenizer('char', grpo.dataset)
        causal = bool(reply) or grpo.blank_kind in ('answer', 'suffix')
        learned = grpo.fill_order == 'learned' and not causal
        n_more = grpo.n_fill_steps - 1 if learned else 2 * grpo.epochs
        data = Dataset(train[:500], held_out[:50], tok, causal, reply=reply, n_more=n_more,
                       **config)
        networks = [tiny(tok.vocab_size, data.block_size, 1, 2, 8, causal) for _ in range(2)]
        if learned:
            for network in networks:
                network.decide_order(grpo.n_fill_steps)
        scorer = Scorer(None, lambda text: share_of(text, 'verify'), {
            **functions, 'b': lambda texts: [share_of(text, 'b') for text in texts]}, networks[1])
        prompts = grpo.get_prompts(data, 0)
        yield SimpleNamespace(policy=networks[0], scorer=scorer, data=data, prompts=prompts,
                              r=grpo.act(networks[0], prompts))
    finally:
        vars(grpo).update(before)
        vars(grpo.rules).update(rules)


# ---- the checks, each for a function of one knob -------------------------------------------------


# Each check yields (a sentence, whether it is true, what follows if it is not).


def check_adv_norm(f, toy):
    a, b = [torch.rand(P, K).double() for _ in range(2)]
    a[0] = 0.0
    a[1] = 1.0
    b[:2] = 0.5                                 # two dead groups
    scores = {'verify': a, 'b': b, 'reward': a + b}
    A = f(scores['reward'], scores)
    fits = A.shape == (P, K)
    yield 'it returns (P, k) finite numbers', fits and A.isfinite().all(), ''
    if not fits:
        return
    is_dead = grpo.all_equal(A)[:2].all()
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


def check_objective(f, toy):
    is_sampled = toy.r.is_sampled                                               # (N, T)
    logp, logp_old, logp_sampled = [(0.4 * randn(*is_sampled.shape) - 2) * is_sampled
                                    for _ in range(3)]
    A = randn(len(is_sampled), 1)

    def terms(x, r=toy.r, rows=slice(None)):
        r = replace(r, logp_sampled=logp_sampled[rows])
        stats = TokenStats(x[rows], x[rows], logp_old[rows], 0 * x[rows], 0 * x[rows], -x[rows])
        return f(stats, logp_old[rows], A[rows], r)

    def loss(x):
        return (terms(x)[0] * is_sampled).sum()

    whole, numbers = terms(logp)
    fits = all(values.shape == is_sampled.shape for values in (whole, *numbers.values()))
    yield 'loss and numbers are (N, T)', fits, ''
    halves = [terms(logp, r, rows)[0] for r, rows in halves_of(toy)]
    yield ('half of the sequences have the loss that they have among all',
           close(torch.cat(halves), whole), 'ranks and micro-steps would change it')
    x = logp_old.clone().requires_grad_()
    push, = torch.autograd.grad(loss(x), x)
    is_right = (push * A * is_sampled <= 0).all() and push.any()
    yield ('before the first update good tokens become likelier, bad ones less', is_right,
           'is the sign right?')
    yield ('its gradient is that of finite differences', has_true_gradient(loss, logp),
           'right only if it stops a gradient, by detach(), as CISPO does')


def check_kl_type(f, toy):
    logp_old, logp_ref, x = [0.4 * randn(P * K, T) - 2 for _ in range(3)]

    def penalty(x, ref=logp_ref):
        kl = (x - ref) ** 2
        return f(TokenStats(x, x, ref, kl, kl, -x), logp_old)

    yield 'it returns (N, T)', penalty(x).shape == x.shape, ''
    yield ('it is 0 where policy and reference are equal',
           close(penalty(x, x), torch.zeros(()).double()), 'it is no KL')
    is_true = has_true_gradient(lambda x: penalty(x).sum(), x)
    yield ('its gradient is that of finite differences', is_true,
           'right only if it stops a gradient, by detach()')


def check_likelihood(f, toy):
    policy, reference = [tiny(5, T, 1, 2, 8, False) for _ in range(2)]
    tokens = torch.randint(1, 5, (P, T))
    blank = torch.arange(T) >= torch.arange(P)[:, None] % 4
    uniforms = torch.rand(P, K, T)
    order = torch.rand(P, T)
    masks = torch.rand(P, K, 2, T)
    prompts = Prompts(tokens, blank, uniforms, order, masks, torch.arange(P), None)
    r = fill(policy, prompts, n_fill_steps=2)
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


def halves_of(toy):
    """Return the Rollouts of the first and of the second half of the prompts, and their rows."""
    half = P // 2
    parts = [(slice(0, half), slice(0, half * K)), (slice(half, P), slice(half * K, P * K))]
    return [(grpo.act(toy.policy, toy.prompts[part]), rows) for part, rows in parts]


def check_credit(f, toy):
    A = randn(P, K)
    A[0] = 0.0                                  # a dead group
    A = (A - A.mean(1, keepdim=True)).view(-1, 1)

    def credit(r, rows=slice(None)):
        return f(A[rows], r, toy.policy, toy.scorer)

    whole = credit(toy.r)
    fits = whole.shape in ((P * K, 1), toy.r.sequences.shape)
    yield ('it returns (N, 1) or (N, T) finite numbers', fits and whole.isfinite().all(),
           f'found {tuple(whole.shape)}')
    if not fits:
        return
    yield ('it has no gradient', not whole.requires_grad,
           'the loss would learn through it: detach(), or torch.no_grad()')
    yield ('a group whose advantages are 0 gets exactly 0', not whole[:K].any(),
           'right only if it brings rewards of its own')
    halves = [credit(r, rows) for r, rows in halves_of(toy)]
    yield ('half of the prompts have the numbers that they have among all',
           close(torch.cat(halves), whole), 'ranks and micro-steps would change it')
    # Other last tokens, with the same advantages: nothing that came before a token has changed.
    n = torch.arange(P * K)
    last = toy.r.pass_of.argmax(1)              # a position of the last pass
    sequences = toy.r.sequences.clone()
    sequences[n, last] = 1 + sequences[n, last] % (toy.data.tok.vocab_size - 1)     # never eos
    logp = toy.r.logp_sampled.clone()
    logp[n, last] -= 0.5
    others = credit(replace(toy.r, sequences=sequences, logp_sampled=logp))
    yield ('given the advantages, it does not look at the id of the token itself',
           close(others, whole),
           'a baseline that peeks at its token changes the mean gradient: right only if it rewards '
           'or weighs tokens')


def check_experience(f, toy):
    for step in range(2):                       # the second one may learn from the first, too
        prompts = grpo.get_prompts(toy.data, step)
        micro_steps, scores, advantages = f(toy.policy, toy.scorer, prompts)
        if step == 0:
            fits = 'reward' in scores and advantages.dim() == 2 and advantages.size(1) == K
            yield "it returns micro-steps, scores with 'reward', advantages (P, k)", fits, ''
        fits = advantages.isfinite().all() and all(
            len(advantages[index]) == len(r.prompts) and r.prompts.k == K
            and len(r.sequences) == K * len(r.prompts) for index, r in micro_steps)
        yield (f'step {step}: each micro-step is a slice of the advantages, which are finite, and '
               'the Rollout of as many prompts', fits, '')
        if not fits:
            return
        sgd = torch.optim.SGD(toy.policy.parameters(), 0.01)
        numbers = grpo.learn(toy.policy, toy.scorer, [sgd], micro_steps, advantages, 0.01,
                             grpo.kl_beta)
        yield f'step {step}: the policy learns from it', abs(numbers['loss']) < 1e9, ''


def check_draw_prompts(f, toy):
    for step in range(2):
        first, again = [f(toy.data, step, toy.policy, toy.scorer) for _ in range(2)]
        fits = isinstance(first, Prompts) and len(first) == P and first.k == K
        yield f'step {step}: it returns the Prompts of a step, {P}', fits, ''
        if not fits:
            return
        yield (f'step {step}: asked again it returns the same', first.uniforms.equal(again.uniforms),
               'right only if STATE has what it depends on')


def check_state(f):
    """Of what a file keeps, after it was called."""
    state = f.__globals__.get('STATE')
    if state is None:
        return
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    error = ''
    try:
        torch.load(file, weights_only=True)
    except Exception as e:                      # torch raises several kinds
        error = f'expected numbers, text, tensors, lists and dicts: {e!r:.100}'
    yield 'a checkpoint with STATE can be read', type(state) is dict and not error, error


CHECKS = {'adv_norm': check_adv_norm, 'objective': check_objective, 'kl_type': check_kl_type,
          'likelihood': check_likelihood, 'credit': check_credit, 'experience': check_experience,
          'draw_prompts': check_draw_prompts}


def check(*words):
    """Check the functions that words of a command line, config files and flags, put in the place of
    ours. Return a list of (knob, sentence, whether it is true, what follows if it is not)."""
    torch.manual_seed(0)
    config, functions = configure(dict(vars(grpo)), [*words, TOY])
    results = []
    for knob, run_checks in CHECKS.items():
        value = config[knob]
        if value in grpo.CHOICES[knob]:
            continue
        try:
            with toy_run(config, functions) as toy:
                rows = list(run_checks(functions[value], toy))
            rows += check_state(functions[value])
        except Exception as e:                  # a function of yours can raise anything
            rows = [('it can be called in a toy run', False, repr(e))]
        for sentence, is_true, follows in rows:
            results.append((f'{knob} = {value!r}', sentence, bool(is_true), follows))
    return results


if __name__ == "__main__":
    words = words_of(__doc__, 1)
    lines = check_task(words)
    for is_well, sentence in lines:
        print({True: 'ok ', False: 'NOT', None: '   '}[is_well], sentence)
    results = check(*[word for word in words if not is_task(word)])
    for knob, sentence, is_true, follows in results:
        if is_true:
            print(f'ok  {knob}: {sentence}')
        else:
            print(f'NOT {knob}: {sentence}: {follows}')
    if not results and not lines:
        print("none of these files puts a function in the place of ours")
