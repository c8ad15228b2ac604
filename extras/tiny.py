"""GRPO in sixty lines of code: a network learns to fill _+4+_+2=17 so that it is true.

    python extras/tiny.py                           # torch, one core, six seconds

train_grpo.py adds what is left out: a judge that was learned, filling in several passes,
causal writing, accumulation and ranks, evaluation, resume."""
import copy
import torch
from torch import nn
from torch.distributions import Categorical

seed = 1
torch.manual_seed(seed)
torch.set_num_threads(1)

# Task: rows a+b+c+d=ef. Two of a, b, c, d are blank, and many fills are true: a function
# can tell. A tenth of the prompts, by the sum of their symbols, is held out.
BLANK = 10
def draw(n, held_out=False):
    digits = torch.randint(10, (n, 4))
    total = digits.sum(1, keepdim=True)
    rows = torch.cat([digits, total // 10, total % 10], dim=1)
    two = torch.rand(n, 4).argsort(1)[:, :2]
    prompts = rows.scatter(1, two, BLANK)
    is_held_out = prompts.sum(1) % 10 == 0
    chosen = is_held_out == held_out
    return prompts[chosen], rows[chosen]

def verify(prompts, fills):
    rows = torch.where(prompts == BLANK, fills, prompts)
    a, b, c, d, e, f = rows.unbind(-1)
    return a + b + c + d == 10 * e + f

# Policy: one pass gives each of the six positions a distribution over ten digits, so both
# blanks are drawn at once: neither knows what the other one becomes.
policy = nn.Sequential(
    nn.Embedding(11, 16), nn.Flatten(),
    nn.Linear(6 * 16, 128), nn.ReLU(),
    nn.Linear(128, 128), nn.ReLU(),
    nn.Linear(128, 6 * 10), nn.Unflatten(1, (6, 10)))

# Start: pretraining on true rows teaches which digits each blank can be. But two of those
# are seldom true together, nor are the two likeliest: they are the line to beat.
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for step in range(1000):
    prompts, rows = draw(256)
    blank = prompts == BLANK
    loss = nn.functional.cross_entropy(policy(prompts)[blank], rows[blank])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
reference = copy.deepcopy(policy).requires_grad_(False)
held_out, _ = draw(10000, held_out=True)
line_to_beat = verify(held_out, reference(held_out).argmax(-1)).float().mean()

optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for step in range(241):
    # Report: what share of the samples is true, on prompts never trained on?
    if step % 30 == 0:
        fills = Categorical(logits=policy(held_out)).sample()
        true = verify(held_out, fills).float().mean()
        bar = '#' * int(40 * true)
        print(f"step {step:3} | line to beat {line_to_beat:.1%} | true {true:.1%} {bar}")
    # Act: k = 16 completions of each of B prompts.
    prompts, _ = draw(128)
    old = Categorical(logits=policy(prompts).detach())
    fills = old.sample((16,))                                       # (k, B, 6)
    logp_old = old.log_prob(fills)
    # Judge and compare: what beats the mean of its group is to become likelier.
    reward = verify(prompts, fills).float()                         # (k, B)
    advantage = (reward - reward.mean(0)).unsqueeze(-1)
    # Learn, four times from the same fills: the ratio is how much likelier one is by now,
    # clipped where that is enough. The exact KL holds the policy near its start.
    ref = Categorical(logits=reference(prompts))
    for update in range(4):
        new = Categorical(logits=policy(prompts))
        ratio = (new.log_prob(fills) - logp_old).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        kl = (new.probs * (new.logits - ref.logits)).sum(-1)        # (B, 6)
        loss = (0.01 * kl - gain)[:, prompts == BLANK].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
