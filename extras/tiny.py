"""GRPO in 60 lines of code: a network learns to fill _+4+_+2=17 so that it is true.

    python -m extras.tiny                           # torch, one core, 8 seconds

train_grpo.py adds a learned judge, advantages that are divided by a std, an entropy bonus,
micro-steps and ranks, logs and checkpoints; plugins add several passes, and writing from left to
right."""
import copy

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(1)
torch.set_num_threads(1)

# The task: sequences a+b+c+d=ef. Two of a, b, c, d are blank. Many completions are true,
# and a function can tell. A tenth of the prompts is held out: those whose visible digits sum
# to a multiple of ten. (A blank is 10, so it does not change the last digit of the sum.)
BLANK = 10
def make_prompts(n, held_out=False):     # about 0.9 n of them, or 0.1 n held out
    digits = torch.randint(10, (n, 4))
    total = digits.sum(1, keepdim=True)
    sequences = torch.cat([digits, total // 10, total % 10], dim=1)
    two = torch.rand(n, 4).argsort(1)[:, :2]
    prompts = sequences.scatter(1, two, BLANK)
    is_held_out = prompts.sum(1) % 10 == 0
    return prompts[is_held_out == held_out], sequences[is_held_out == held_out]

def verify(prompts, actions):           # an action has six ids, but only those at blanks count
    sequences = torch.where(prompts == BLANK, actions, prompts)
    a, b, c, d, e, f = sequences.unbind(-1)
    return a + b + c + d == 10 * e + f

# The policy: one pass gives each of the six positions a distribution over ten digits. Both
# blanks are sampled at once, so neither knows what the other one becomes.
policy = nn.Sequential(
    nn.Embedding(11, 16), nn.Flatten(),
    nn.Linear(6 * 16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
    nn.Linear(128, 6 * 10), nn.Unflatten(1, (6, 10)))

# Pretraining on true sequences teaches which digits are possible in each blank. But two
# possible digits seldom make the sequence true, and even the two likeliest seldom do. How
# often they do is the line to beat. (train_grpo.py takes the larger one of this and the share of
# sampled sequences.)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for step in range(1000):
    prompts, sequences = make_prompts(256)
    blank = prompts == BLANK
    loss = nn.functional.cross_entropy(policy(prompts)[blank], sequences[blank])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
reference = copy.deepcopy(policy).requires_grad_(False)
held_out, _ = make_prompts(10000, held_out=True)
line_to_beat = verify(held_out, reference(held_out).argmax(-1)).float().mean()

# GRPO: k completions of each of P prompts. (P is about 115: of 128, a tenth is held out.)
k = 16
def distributions(network, prompts):
    # (P, 1, 6), ten digits each; the 1 is where the k completions of a prompt will be.
    return Categorical(logits=network(prompts)[:, None])

optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for step in range(241):                     # 241, so that step 240 is printed
    # Report which share of the samples is true, on prompts that are never trained on.
    if step % 30 == 0:
        true = verify(held_out, Categorical(logits=policy(held_out)).sample()).float().mean()
        print(f"step {step:3} | line to beat {line_to_beat:.3f} | true {true:.3f}")
    # Act: sample k completions of each prompt.
    prompts, _ = make_prompts(128)
    with torch.no_grad():
        old = distributions(policy, prompts)
    # k draws from the same distributions: expand() of a distribution copies nothing.
    actions = old.expand((len(prompts), k, 6)).sample()             # (P, k, 6)
    # (train_grpo.py does not keep this: before several updates it reads the completions again, and
    # for a single one it detaches the new log-probability.)
    logp_old = old.log_prob(actions)
    # Score, and compare each completion with the mean of its group (not divided by the std).
    reward = verify(prompts[:, None], actions).float()              # (P, k)
    advantages = reward - reward.mean(1, keepdim=True)
    advantages = advantages[:, :, None]                             # (P, k, 1), for six ids each
    # Learn, four times from the same completions. The ratio: how much likelier is a token now?
    # The min stops the gradient of good tokens above ratio 1.2, and of bad tokens below 0.8. The
    # KL, of all ten digits (.logits are log-probabilities), keeps the policy near the reference.
    ref = distributions(reference, prompts)
    is_blank = (prompts == BLANK)[:, None].expand_as(actions)       # (P, k, 6)
    for update in range(4):
        new = distributions(policy, prompts)
        ratio = (new.log_prob(actions) - logp_old).exp()            # (P, k, 6)
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        kl = (new.probs * (new.logits - ref.logits)).sum(-1)        # (P, 1, 6)
        loss = (0.01 * kl - gain)[is_blank].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
