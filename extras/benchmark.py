"""Time a step beside one that works the usual way: k copies of each prompt go through the policy,
the reference and the judge. The networks are of any size, and not trained; texts are random.

    python -m extras.benchmark                                  # as large as the default's
    python -m extras.benchmark --n_layer=6 --n_head=6 --n_embd=384 --length=128 --batch_size=4
    python -m extras.benchmark --dtype=bfloat16
    python -m extras.benchmark --device=cuda --n_steps=90       # a GPU

More words are for train_grpo.py. Both ways have the same loss and the same optimizers, so their
ratio is about sampling, scoring and learning. They take turns, at learning rate 0, so that the
policy and the cost of a step stay as they are."""
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, '.')         # for `python extras/benchmark.py`

import train_grpo as grpo  # before torch: it says how threads of torch wait

# isort: split
import torch
import torch.nn.functional as F

from model import GPT
from plumbing.configurator import configure, knobs_of
from plumbing.networks import save_network
from plumbing.run import open_task
from tasks import Tokenizer

# ---- knobs; other words are for train_grpo.py ----------------------------------------------------
n_layer = 3                 # of generator and judge
n_head = 4
n_embd = 64
length = 9                  # letters of a text
n_steps = 15                # of which the first third warms up


def make_files(folder):
    """Write texts and networks. Return words for train_grpo.py."""
    tok = Tokenizer('+0123456789=')
    random.seed(0)
    texts = [''.join(random.choices(tok.vocabulary['chars'], k=length)) for _ in range(2000)]
    records = [json.dumps({'prompt': text}) for text in texts]
    Path(folder, 'texts.jsonl').write_text('\n'.join(records))
    for kind in ('fill', 'causal'):
        network = GPT(tok.vocab_size, length + 1, n_layer, n_head, n_embd, kind)
        network.tok = tok
        torch.nn.init.normal_(network.head.weight, std=0.02)
        save_network(f'{folder}/{kind}.pt', network)
    return [f'--dataset={folder}/texts.jsonl', f'--generator={folder}/fill.pt',
            f'--judge={folder}/causal.pt']


def our_step(networks, optimizers, task, step):
    rollouts, _ = grpo.collect(networks, task, step)
    grpo.learn(networks, optimizers, rollouts, 0.0)


def usual_step(networks, optimizers, task, step):
    """Take a step of one pass in the usual way, with k copies of each prompt."""
    policy = networks.policy
    grpo.devices.set_seed(step)
    prompts = task.prompts('train', grpo.batch_size)
    whole = prompts.whole.repeat_interleave(grpo.group_size, 0)             # (N, T)
    blank = prompts.blank.repeat_interleave(grpo.group_size, 0)
    views = whole.masked_fill(blank, policy.blank_id)

    def logp_of(network):                       # (M, V)
        return grpo.log_probs(network.logits(network.features(views)[blank]))

    with torch.no_grad():                       # act, judge and compare with the reference
        token = logp_of(policy).exp().multinomial(1)                        # (M, 1)
        texts = whole.masked_scatter(blank, token)
        inputs = F.pad(texts[:, :-1], (1, 0), value=policy.bos_id)
        logits = networks.judge.logits(networks.judge.trunk(inputs))        # (N, T, V)
        losses = F.cross_entropy(logits.mT, texts, reduction='none')        # (N, T)
        logp_ref = logp_of(networks.reference)
    A = grpo.advantages(-losses.mean(1).view(-1, grpo.group_size), {}).flatten()
    logp = logp_of(policy)
    entropy = -(logp.exp() * logp).sum(1)
    gain = logp.gather(1, token)[:, 0] * A[blank.nonzero()[:, 0]]       # each ratio is 1
    kl = grpo.divergence(logp, logp_ref)
    loss = grpo.kl_beta * kl - grpo.entropy_coef * entropy - gain
    loss.mean().backward()
    grpo.optimizer_step(policy, optimizers, 0.0, grpo.grad_clip)


def seconds_of(take_step, *args):
    """Return the seconds that a step takes. It ends with a number, for which a GPU is waited."""
    began = time.time()
    take_step(*args)
    return time.time() - began


if __name__ == '__main__':
    names = {'--help', '-h', *[f'--{name}' for name in knobs_of(globals())]}
    ours = [word for word in sys.argv[1:] if word.partition('=')[0] in names]
    configure(globals(), ours)
    with tempfile.TemporaryDirectory() as folder:
        others = [word for word in sys.argv[1:] if word not in ours]
        configure(vars(grpo), make_files(folder) + others)
        device = grpo.devices.init_device(grpo.device, grpo.dtype)
        networks, task = open_task(vars(grpo), device, {})
    job = networks, grpo.make_optimizers(networks.policy, grpo.optimizer), task
    seconds = [[seconds_of(take_step, *job, step) for take_step in (our_step, usual_step)]
               for step in range(n_steps)]
    mine, usual = map(statistics.median, zip(*seconds[n_steps // 3:]))
    print(f"{n_layer} x {n_embd}, {grpo.batch_size} prompts x {grpo.group_size} completions of "
          f"{length} letters, {grpo.dtype} on {device}: a step takes {1000 * mine:.1f} ms, "
          f"the usual way {1000 * usual:.1f} ms, {usual / mine:.2f} times as long at this size")
