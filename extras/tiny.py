"""GRPO in a hundred lines: a network learns to fill _+4+_+2=17 so that it is true.

    python -m extras.tiny           # 8 seconds on one core; another processor rounds differently

    step   0 | greedy at step 0: 0.176 | true 0.185
    step  30 | greedy at step 0: 0.176 | true 0.602
    ...
    step 240 | greedy at step 0: 0.176 | true 0.969

It takes no words on the command line: change a number below, such as k, and run it again.

The two blanks are filled at once, so neither knows what the other one becomes. Pretraining teaches
which digits are possible in each blank. GRPO teaches the blanks to agree."""
import copy

import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence

torch.manual_seed(1)
torch.set_num_threads(1)

# ---- the task: texts a+b+c+d=ef, as six digits. Two of a, b, c, d are blank ----------------------
BLANK = 10


def make_prompts(n, held_out=False):
    """Draw n random texts and blank two digits in each. Return prompts (P, 6) and texts (P, 6) of
    those that are held out, about n / 10, or of the others. Held out are prompts whose digits add
    up to a multiple of ten. (A blank is 10, and does not change that.)"""
    digits = torch.randint(10, (n, 4))
    total = digits.sum(1, keepdim=True)
    texts = torch.cat([digits, total // 10, total % 10], dim=1)
    two = torch.rand(n, 4).argsort(1)[:, :2]                # two different positions at random
    prompts = texts.scatter(1, two, BLANK)
    is_held_out = prompts.sum(1) % 10 == 0
    return prompts[is_held_out == held_out], texts[is_held_out == held_out]


def verify(prompts, actions):
    """Return 1.0 where a text is true: prompts (P, 6) and actions (..., P, 6) become (..., P). Only
    the digits at blanks count."""
    a, b, c, d, e, f = torch.where(prompts == BLANK, actions, prompts).unbind(-1)
    return (a + b + c + d == 10 * e + f).float()


# ---- the policy: at each of six positions a distribution over ten digits, from one pass ----------
policy = nn.Sequential(
    nn.Embedding(11, 16), nn.Flatten(),
    nn.Linear(6 * 16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
    nn.Linear(128, 6 * 10), nn.Unflatten(1, (6, 10)))

# Pretraining: imitate true texts.
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for _ in range(1000):
    prompts, texts = make_prompts(256)
    blank = prompts == BLANK
    loss = nn.functional.cross_entropy(policy(prompts)[blank], texts[blank])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
reference = copy.deepcopy(policy).requires_grad_(False)
# The share of texts that are true if each blank gets its likeliest digit. A policy can come near it
# by becoming surer of itself, without learning anything new. So it has to do better.
held_out, _ = make_prompts(10000, held_out=True)
greedy = verify(held_out, reference(held_out).argmax(-1)).mean()

# ---- GRPO: k completions of each of P prompts ----------------------------------------------------
k = 16
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for step in range(241):
    if step % 30 == 0:                                      # prompts that are never trained on
        true = verify(held_out, Categorical(logits=policy(held_out)).sample()).mean()
        print(f"step {step:3} | greedy at step 0: {greedy:.3f} | true {true:.3f}")
    # Act: draw k completions of each prompt.
    prompts, _ = make_prompts(128)                          # (P, 6)
    with torch.no_grad():
        old = Categorical(logits=policy(prompts))           # P * 6 distributions over ten digits
        ref = Categorical(logits=reference(prompts))
    actions = old.sample((k,))                              # (k, P, 6)
    logp_old = old.log_prob(actions)                        # (k, P, 6)
    # Score: is the text true?
    reward = verify(prompts, actions)                       # (k, P)
    # Compare each completion with the mean of its group. (The paper also divides by the std.)
    advantage = (reward - reward.mean(0))[..., None]        # (k, P, 1), for all six positions
    # Learn, four times from the same completions. The ratio says how much likelier a digit has
    # become: in the first update it is 1. The min ends the push on a good digit once its ratio is
    # above 1.2, and on a bad one below 0.8.
    for update in range(4):
        new = Categorical(logits=policy(prompts))
        ratio = (new.log_prob(actions) - logp_old).exp()    # (k, P, 6)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        kl = kl_divergence(new, ref)                        # (P, 6) keeps the policy near its start
        loss = (0.01 * kl - gain)[:, prompts == BLANK].mean()           # over (k, blanks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
