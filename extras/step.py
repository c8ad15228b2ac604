"""One step of GRPO with real numbers: one prompt, six completions, one update.

    python -m extras.step                           # one core, 8 seconds

Headings name the functions that compute the numbers below them, nearly all of them functions of
train_grpo.py, in the order in which a run calls them. docs/step.md explains each block.

All numbers are float64 and come from one thread of a CPU, so every machine prints the same."""
import copy
import re
import sys
from types import SimpleNamespace

sys.path.insert(0, '.')         # for `python extras/step.py`

import torch

import train_grpo as grpo
from model import GPT
from plumbing import devices
from plumbing.datasets import Dataset
from plumbing.optim import get_lr, make_optimizers, optimizer_step
from plumbing.process import expect
from pretrain import loss_of
from tasks import Task, make_tokenizer

expect(len(sys.argv) == 1, f"{sys.argv[1:]}: this script takes no words")
torch.set_num_threads(1)
devices.init_device('cpu', 'float64')


def table(columns):
    """Print columns {title: values} side by side."""
    cells = []
    for title, values in columns.items():
        texts = [title, *map(show, values)]
        cells.append([text.rjust(max(map(len, texts))) for text in texts])
    for line in zip(*cells):
        print('   '.join(line).rstrip())


def show(x):
    """Return the text of a number, with three digits if it is no integer."""
    if isinstance(x, torch.Tensor):
        x = x.item()
    # Some sums are -1e-17 instead of 0, and round() makes -0.0 of them. -0.0 + 0.0 is 0.0.
    return f'{round(x, 3) + 0.0:.3f}' if isinstance(x, float) else str(x)


def verify(text):
    """Return 1.0 if a text such as 3+4=07 is true, else 0.0."""
    if not re.fullmatch('[0-9][+][0-9]=[0-9]{2}', text):
        return 0.0
    return float(int(text[0]) + int(text[2]) == int(text[4:]))


# ---- before the step: a network that has seen true sums ------------------------------------------
# It learns to fill random blanks of all hundred sums of two digits. (The loop is pretrain.py's. Its
# main() is not called, because it writes a file.)
sums = [{'prompt': f'{a}+{b}=', 'answer': f'{a + b:02}'} for a in range(10) for b in range(10)]
data = Dataset(sums, [], verify, reply=None)
tok = make_tokenizer('char', '+0123456789=')
all_sums = Task(data, tok, 'random')
torch.manual_seed(1)
policy = GPT(tok.vocab_size, all_sums.length, n_layer=2, n_head=2, n_embd=32, kind='fill')
optimizers = make_optimizers(policy, 'muon')
for i in range(300):
    loss_of(policy, all_sums.prompts('train', 64)).backward()
    optimizer_step(policy, optimizers, get_lr(i, 1e-2, 1e-3, 20, 300), grad_clip=1.0)
    policy.zero_grad()

# ---- the prompt ----------------------------------------------------------------------------------
data = data._replace(train=[{'prompt': '_+_=07', 'answer': ''}])
task = Task(data, tok, 'answer', policy)
networks = SimpleNamespace(policy=policy, reference=copy.deepcopy(policy), judge=None)
optimizers = make_optimizers(policy, grpo.optimizer)
grpo.entropy_coef = 0.0     # no bonus, so that a reader can check all numbers with a pencil
k = 6

print('1. Task.prompts(): the prompt')
prompts = task.prompts('train', 1)
names = ['eos', *tok.pieces[1:]]                        # of all ids
table({'position': range(task.length), 'id': prompts.whole[0],
       'token': [names[i] for i in prompts.whole[0]], 'blank': prompts.blank[0]})


# ---- act -----------------------------------------------------------------------------------------
def probabilities():
    """Return the probabilities (2, V) of all ids at the two blanks."""
    with torch.no_grad():
        logits = policy.logits(policy.features(prompts.whole)[prompts.blank])
    return grpo.log_probs(logits).exp()


print('\n2. features(), logits(), log_probs(): the probabilities of all ids at both blanks')
before = probabilities()
table({'id': range(tok.vocab_size), 'token': names[:tok.vocab_size],
       'position 0': before[0], 'position 2': before[1]})

print('\n3. complete(): six completions')
torch.manual_seed(25)       # a draw in which a false completion becomes more likely
rollout = grpo.complete(policy, prompts, k)
completions = rollout.columns['completion']
logp = grpo.log_probs_of(policy, rollout)               # (M,)
probability = rollout.per_text(logp).exp()              # (N,)
table({'text': range(k), 'completion': completions, 'probability': probability})

# ---- score, compare ------------------------------------------------------------------------------
print('\n4. score(), advantages(): rewards, compared with the mean of the group')
scores = grpo.score(rollout, networks, {'verify': 1.0}, 0, 'train')
reward = scores['reward']                               # (1, k)
advantage = grpo.advantages(reward, scores)             # (1, k)
table({'text': range(k), 'completion': completions, 'reward': reward[0],
       'reward - mean': reward[0] - reward.mean(), 'advantage': advantage[0]})
print(f"mean {show(reward.mean())}, std {show(reward.std())}")

print('\n5. per_token(): the table of the Rollout, a row for each sampled token')
rollout.advantage = rollout.per_token(advantage)        # (M,)
token = [names[i] for i in rollout.token]
table({'row': range(len(token)), 'text_of': rollout.text_of, 'position': rollout.position,
       'token': token, 'advantage': rollout.advantage, 'logp': logp})

# ---- learn ---------------------------------------------------------------------------------------
print('\n6. token_stats(), policy_loss(), kl_penalty(): the loss of some tokens, and of all')
rollout.logp_old = logp     # the step begins, so this is the log-probability before it
stats = grpo.token_stats(policy, rollout, networks.reference)
ratio = (stats.logp - rollout.logp_old).exp()
loss, _ = grpo.policy_loss(stats, rollout)
columns = {'ratio': ratio, 'policy_loss': loss, 'KL': grpo.kl_penalty(stats),
           'entropy': stats.entropy}                    # (M,) each
some = [0, 5, 11]
table({'row': [*some, 'mean'], 'token': [*[token[i] for i in some], '']}
      | {name: [*x[some], x.mean()] for name, x in columns.items()})

print('\n7. learn(): the gradient and the update, at position 0')
gradients = []              # of the loss with respect to the logits (M, V), one in each update
policy.head.register_full_backward_hook(lambda layer, _, grad: gradients.append(grad[0]))
metrics = grpo.learn(networks, optimizers, [rollout], grpo.learning_rate)
after = probabilities()
gradient = gradients[0][rollout.position == 0].sum(0)   # (V,) six rows have the same logits


def sum_of_advantages(position):
    """Return for each id (V,) the sum of the advantages of the tokens there that have this id."""
    rows = rollout.position == position
    return torch.zeros(tok.vocab_size).index_add(0, rollout.token[rows], rollout.advantage[rows])


table({'token': names[:tok.vocab_size], 'sum of advantages': sum_of_advantages(0),
       'gradient': gradient, 'before': before[0], 'after': after[0]})
print(f"loss {show(metrics['loss'])}, norm of the gradient of all weights "
      f"{show(metrics['grad_norm'])}")

# ---- after the step ------------------------------------------------------------------------------
print('\n8. log_probs_of(): the probabilities of completions before and after the step')
probability_now = rollout.per_text(grpo.log_probs_of(policy, rollout)).exp()
has_risen = ['rose' if x > y else 'fell' for x, y in zip(probability_now, probability)]
table({'completion': completions, 'advantage': advantage[0], 'before': probability,
       'after': probability_now, '': has_risen})
first, second = tok.encode('01234567'), tok.encode('76543210')
is_true = [(p[0, first] * p[1, second]).sum() for p in (before, after)]
print(f"all 8 true completions together: before {show(is_true[0])}, after {show(is_true[1])}")

print('\n9. why: the sums of advantages at the two tokens of a completion')
at_0 = sum_of_advantages(0)[rollout.texts[:, 0]]
at_2 = sum_of_advantages(2)[rollout.texts[:, 2]]
table({'completion': completions, 'at position 0': at_0, 'at position 2': at_2,
       'together': at_0 + at_2, '': has_risen})
