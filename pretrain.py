"""Train a generator or a judge from scratch: a network that fills blanks, a causal one, or a
classifier. The config file of a network is its recipe. train_grpo.py makes a network from its
recipe when it is missing.

    python pretrain.py config/networks/judge_arithmetic.py --out=out/judge.pt
"""
import copy
import os
import sys

import plumbing     # before torch, because it sets an environment variable for its threads
import torch
import torch.nn.functional as F

import train_grpo as grpo       # for samples of a network, in share_right()
from model import GPT
from plumbing import datasets, devices, networks
from plumbing.configurator import configure
from plumbing.optim import get_lr, make_optimizers, optimizer_step
from plumbing.process import bar, expect, say
from tasks import BLANK, Task, make_tokenizer

# ---- knobs ---------------------------------------------------------------------------------------
out = 'out/network.pt'      # the checkpoint to write
dataset = 'arithmetic'      # a module of data/ | FILE.py | FILE.jsonl
tokenizer = 'char'          # 'char' | 'gpt2' | another dataset, whose characters are taken
kind = 'fill'               # 'fill' blanks | 'causal': from left to right | 'classifier', if a file
                            # includes config/networks/classifier.py
blank_kind = 'random'       # 'random': a share of a text | 'answer': what its record leaves open.
                            # causal: 'random' learns all tokens, 'answer' those of answers
block_size = 0              # T, tokens that it can read; 0: those of the longest text
n_layer = 3                 # blocks
n_head = 4                  # heads of a block
n_embd = 64                 # C, channels
positions = 'learned'       # 'learned': absolute, for equations | 'rotary': relative, for prose
batch_size = 256
max_iters = 1000
eval_interval = 250         # steps between evaluations on held-out texts
stop_at = 0.0               # stop if an evaluation finds this share of right samples; 0: never
learning_rate = 4e-3        # peak; the cosine ends at a tenth of it
warmup_iters = 50
weight_decay = 0.01
device = 'auto'             # 'auto': an NVIDIA GPU or the CPU | 'cpu' | 'cuda' | 'mps'
dtype = 'float32'           # of matrix products: 'float32' | 'bfloat16' | 'float64'
seed = 1


def new_network():
    """Return a network that has not learned, and the Task from which it will."""
    data = datasets.load(dataset)
    source = datasets.load(dataset if tokenizer in ('char', 'gpt2') else tokenizer)
    chars = {char for record in source.train + source.held_out
             for char in record['prompt'] + record['answer']}
    # A line feed shows the end of a text. So a Task refuses a record that has one.
    tok = make_tokenizer(tokenizer, ''.join(sorted(chars - {BLANK, '\n'})))
    if blank_kind == 'answer' and kind == 'causal':     # records without an answer teach nothing
        train, held_out = [[record for record in part if record['answer']]
                           for part in (data.train, data.held_out)]
        expect(train and len(held_out) > 1, f"{dataset}: a generator that writes from left to "
               "right imitates answers, and its records have none")
        data = data._replace(train=train, held_out=held_out)
    task = Task(data, tok, blank_kind)
    torch.manual_seed(seed)
    network = GPT(tok.vocab_size, block_size or task.length, n_layer, n_head, n_embd, kind,
                  positions)
    network.tok = tok
    return network, task


def loss_of(network, prompts):
    """Return the cross-entropy of what is blank; of a causal network, of all tokens, or of
    answers. config/networks/classifier.py replaces this."""
    inputs, where = prompts.whole, prompts.blank
    if kind == 'fill':
        inputs = inputs.masked_fill(where, network.blank_id)
    elif blank_kind == 'random':
        where = inputs != network.pad_id
    logits = network.logits(network.features(inputs)[where])
    # Where a record has a blank and no answer, nothing is known.
    loss = F.cross_entropy(logits, prompts.whole[where], ignore_index=network.blank_id)
    expect(loss.isfinite(), "the loss is not finite: do the records have answers?")
    return loss


def share_right(network, held_out):
    """Return the share of right samples, of a network that fills blanks in one pass. The recipe of
    a causal network that has a stop_at includes config/networks/writes.py, which replaces this."""
    rollout = grpo.complete(network, held_out, 1)
    return grpo.score(rollout, None, {'verify': 1.0}, 0, 'val')['verify'].mean()


def main():
    ours = share_right
    configure(globals(), sys.argv[1:])
    expect(stop_at == 0 or kind == 'fill' or share_right is not ours, "stop_at: the recipe of a "
           "causal network must include config/networks/writes.py")
    expect(not out.endswith('/'), f"out = {out!r}: expected a file")
    networks.check_writable(out)
    even = 2 * n_head if positions == 'rotary' else n_head
    expect(n_embd % even == 0, f"n_embd = {n_embd}: expected a multiple of {even}")
    expect(kind != 'classifier' or 'labelled' in globals(), "kind = 'classifier': the recipe must "
           "include config/networks/classifier.py")
    torch_device = devices.init_device(device, dtype)
    network, task = new_network()
    expect(stop_at == 0 or task.verify, f"stop_at = {stop_at}, and {dataset} has no verify(), or "
           "records without an answer: '--stop_at=0' leaves it out")
    network.to(torch_device)
    task.device = torch_device
    devices.set_precision(network, dtype)
    optimizers = make_optimizers(network, 'muon', weight_decay)
    held_out = task.prompts('val', 512)
    best, weights = float('inf'), None
    for step in bar(range(1, max_iters + 1), 'pretraining'):
        loss = loss_of(network, task.prompts('train', batch_size))
        loss.backward()
        lr = get_lr(step - 1, learning_rate, learning_rate / 10, warmup_iters, max_iters)
        optimizer_step(network, optimizers, lr, grad_clip=1.0)
        network.zero_grad()
        if 'PRETRAIN_STEPS' in os.environ:      # for the bar of the run that makes this network
            print(f'{step} of {max_iters}', flush=True)
        if step % eval_interval == 0 or step == max_iters:
            # Evaluations have random numbers of their own, so their interval changes no network.
            with torch.no_grad(), torch.random.fork_rng():
                torch.manual_seed(0)
                held_out_loss = loss_of(network, held_out).item()
                say(f'{out} step {step} | loss {loss:.3f} | held-out loss {held_out_loss:.3f}')
                if stop_at > 0 and share_right(network, held_out) >= stop_at:
                    break
            if held_out_loss < best:
                best, weights = held_out_loss, copy.deepcopy(network.state_dict())
    if max_iters > 0 and held_out_loss > best:  # it has begun to learn its texts by heart
        if stop_at == 0:
            say(f'{out} keeps the weights of the lowest held-out loss, {best:.3f}')
            network.load_state_dict(weights)
        elif held_out_loss > 1.1 * best:        # and no noise
            say(f'{out} learns its texts by heart: its held-out loss was {best:.3f} before '
                '(docs/task.md)')
    networks.save_network(out, network, keep_older='PRETRAIN_STEPS' not in os.environ,
                          learned=[dataset, datasets.sum_of_records(dataset)])


if __name__ == '__main__':
    main()
