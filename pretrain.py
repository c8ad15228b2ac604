"""Train a network from scratch on a dataset: a generator that fills blanks, a generator that writes
from left to right (which is also a likelihood judge), or a classifier.

    python pretrain.py config/networks/generator_arithmetic.py
    python pretrain.py config/networks/judge_classifier.py --max_iters=600 --out=out/later.pt

The config file of a network is its recipe. train_grpo.py calls open_networks() of run/networks.py,
which runs this script for recipes whose network does not exist yet. This file reads downwards:
knobs; loss and data; the run.
"""
import os
import sys
import time
from pathlib import Path

import filelock
import torch
import torch.nn.functional as F

from dataset import Dataset, read_texts
from judge import Scorer, classify
from model import GPT, get_lr, make_optimizers, optimizer_step
from rollout import complete
from run.command import knobs_of
from run.folder import Signals, save_checkpoint
from run.machine import as_numbers, init_device, n_ranks, print_line, use_threads
from run.networks import open_networks, read_recipe

# ---- knobs, changed by config files and --name=value ---------------------------------------------
out = ''                    # new checkpoint to write; '': out/NAME-NUMBER.pt, see read_recipe()
dataset = 'arithmetic'      # a module of data/ | FILE.jsonl | FILE.txt
tokenizer = 'char'          # 'char' | 'gpt2' | another dataset, whose characters are taken
kind = 'fill'               # 'fill' blanks | 'causal': left to right | 'classifier'
against = ''                # classifier: learns to spot what this network fills; '': learns the
                            # column `label` of the dataset, numbers between 0 and 1
block_size = 0              # T, tokens in a sequence; 0: the longest prompt and the longest answer,
                            # up to 1024; of running text 64
n_layer = 3                 # blocks
n_head = 4                  # heads per block
n_embd = 64                 # C, channels
positions = 'rotary'        # 'rotary': relative, for running text | 'learned': absolute, for
                            # equations, whose digits have fixed columns
blank_kind = 'random'       # 'random' positions | 'suffix' | 'answer' of a pair | 'marked': where
                            # the prompt of a pair has _; its answer is the whole text. causal: all
                            # tokens are learned; 'answer': only those of answers
blank_low = 0.2             # smallest share of a sequence that is blank
blank_high = 0.6            # largest share
blank_span = 1              # 'random': blanks are runs of so many positions
batch_size = 256            # sequences per step
max_iters = 1000            # optimizer steps
eval_interval = 250         # steps between evaluations on held-out text
stop_at = 0.0               # stop if an evaluation finds this share of right samples; 0: never.
                            # It looks at held-out prompts, so GRPO's start is a little too high
optimizer = 'muon'          # 'muon': for hidden matrices, AdamW for the rest | 'adamw': for all
learning_rate = 4e-3        # peak; cosine to a tenth of it
warmup_iters = 50           # steps of linear warm-up
weight_decay = 0.01         # of all weights
beta2 = 0.95                # AdamW; beta1 is 0.9
grad_clip = 1.0             # clip gradients at this norm; 0: off
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # matrix products: 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
compile = False             # torch.compile the network
seed = 1                    # of weights, batches and blanks

CHOICES = {
    'kind': ('fill', 'causal', 'classifier'),
    'positions': ('rotary', 'learned'),
    'blank_kind': ('random', 'suffix', 'answer', 'marked'),
    'optimizer': ('muon', 'adamw'),
    'device': ('auto', 'cpu', 'cuda', 'mps'),
    'dtype': ('auto', 'float32', 'bfloat16', 'float64'),
    'batch_size': range(2, 100_000),            # half of a classifier's batch is real
    'seed': range(2 ** 63),
    **dict.fromkeys(('n_layer', 'n_head', 'n_embd', 'blank_span', 'max_iters', 'eval_interval'),
                    range(1, 1_000_000_000)),
}
# A recipe is read into these, as if into the globals of a fresh process: see default_knobs().
DEFAULTS = knobs_of(globals()) | {'CHOICES': CHOICES, '__file__': __file__}


# ---- the loss, and the data ----------------------------------------------------------------------


def loss_of(network, data, filler, split, n, step):
    """Return the loss on n texts, in nats, a cross-entropy.

    fill:       of the tokens in the blanks
    causal:     of all tokens; with blank_kind = 'answer' only of those of the answers
    classifier: of labels. With a filler, half of the texts are real, with label 1, and half are the
                same texts with blanks that the filler has filled, with label 0. Without one, labels
                are the column `label` of the dataset."""
    prompts = data.prompts(split, n, 1, seed, step, purpose='pretrain ').to(network.device)
    tokens = prompts.tokens                     # (n, T); their blanks still have the real text
    if kind == 'classifier':
        if filler:
            prompts = prompts[:n // 2]
            tokens = torch.cat((prompts.tokens, complete(filler, prompts).sequences))
            labels = [1.0] * len(prompts) + [0.0] * len(prompts)
        else:
            labels = [float(data.examples[i]['label']) for i in prompts.row.tolist()]
        logits = classify(network, tokens)                                      # (n,)
        return F.binary_cross_entropy_with_logits(logits, logits.new_tensor(labels))
    where = tokens != data.tok.pad                                              # (n, T)
    if kind == 'fill' or blank_kind == 'answer':        # only what is blank
        where &= prompts.blank
    inputs = tokens
    if kind == 'fill':
        inputs = tokens.masked_fill(where, data.tok.blank_id)
    return F.cross_entropy(network.logits(network(inputs)[where]), tokens[where])


def open_data(tok, filler):
    """Return the Dataset that the network learns from, and the verify() that checks its samples, or
    None if it completes nothing that could be right. filler: the network `against`, or None."""
    train, held_out, verify = read_texts(dataset)
    # A classifier is never causal itself. It takes the rows of its filler, or, if it learns labels,
    # those of a causal network: prompt, answer, eos.
    causal_rows = filler.causal if filler else kind != 'fill'
    if kind == 'classifier' or (causal_rows and blank_kind == 'marked'):
        verify = None
    data = Dataset(train, held_out, tok, causal_rows, **knobs_of(globals()))
    for example in data.examples:               # those of running text are empty
        assert blank_kind != 'marked' or example['answer'], (
            f"{dataset} has prompts without an answer to learn from: give a trained network "
            "(--generator=FILE, --judge=FILE)")
        if kind == 'classifier' and not against:
            label = example.get('label')
            assert type(label) in (int, float) and 0 <= label <= 1, (
                f"{example.get('line', dataset)}: a classifier needs labels between 0 and 1, or a "
                "network `against` it")
    return data, verify


# ---- the run -------------------------------------------------------------------------------------


if __name__ == "__main__":
    Signals()                                   # Ctrl-C and SIGTERM end without a traceback
    path, tok, config = read_recipe(globals(), sys.argv[1:])
    assert path.endswith('.pt'), f"--out={path}: expected FILE.pt"
    assert beta2 < 1 and stop_at <= 1, (
        f"beta2 = {beta2}, stop_at = {stop_at}: expected beta2 < 1, and a share, stop_at <= 1")
    assert n_ranks() == 1, "pretrain.py is one process: expected no torchrun"
    torch_device, _ = init_device(device, dtype)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    assert os.access(Path(path).parent, os.W_OK), f"{path} cannot be written"
    # Runs that start together need the same network. The first one makes it, the others wait.
    lock = filelock.FileLock(f'{path}.lock')
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        print(f"{path} is being made by another process: waiting for it", flush=True)
        lock.acquire()
    if os.path.exists(path) and not out:        # its name says that it is the same network
        print(f"{path} is there already")
        sys.exit()
    assert not os.path.exists(path), (          # a run may have begun with it
        f"{path} is there already; delete it, or choose another --out=FILE")
    filler = None
    if against:
        _, filler_tok, (filler,) = open_networks([against], config, torch_device)
        assert filler_tok.vocabulary == tok.vocabulary, f"{against} has another vocabulary"
    data, verify = open_data(tok, filler)
    assert verify or stop_at == 0, (
        f"{dataset} has no answers to learn from: expected --generator=FILE, a network that was "
        "pretrained on other texts, or stop_at = 0 in this recipe")

    torch.manual_seed(seed)
    network = GPT(tok.vocab_size, block_size or data.block_size, n_layer, n_head, n_embd,
                  kind == 'causal', positions, is_classifier=kind == 'classifier').to(torch_device)
    use_threads(network)
    if compile:
        network.compile()
    optimizers = make_optimizers(network, optimizer, weight_decay, beta2)

    began = time.time()
    shown = 0                                   # the step of the last line of the console
    for step in range(1, max_iters + 1):
        loss = loss_of(network, data, filler, 'train', batch_size, step)
        loss.backward()
        lr = get_lr(step - 1, learning_rate, learning_rate / 10, warmup_iters, max_iters)
        grad_norm = optimizer_step(network, optimizers, lr, grad_clip)     # also sets grads to 0
        if step % eval_interval == 0 or step in (1, max_iters):
            # always the same held-out sequences and blanks, because the step is 0
            with torch.no_grad():
                held_out_loss = loss_of(network, data, filler, 'val', 2 * batch_size, 0)
            numbers = {'loss': loss.detach(), 'held-out loss': held_out_loss}
            if verify:                          # the share of right samples, GRPO's `start`
                r = complete(network, data.prompts('val', 2 * batch_size, 1, 0).to(torch_device))
                scores = Scorer(verify=verify).score(['verify'], r)
                numbers['held-out verify'] = scores['verify'].mean()
            numbers['gradient'] = grad_norm
            numbers['seconds left'] = (time.time() - began) / step * (max_iters - step)
            stops = 0 < stop_at <= numbers.get('held-out verify', 0)
            if stops or step in (1, max_iters) or step >= shown + max_iters / 10:
                shown = step                    # about ten lines, however often it looks
                print_line(f'{path} step {step}', as_numbers(numbers).items())
            if stops:
                print(f"stopped after step {step}: held-out verify is {stop_at} or more")
                break
    else:                                       # no break
        if stop_at > 0:
            print(f"held-out verify never reached stop_at = {stop_at}; if too little is right for "
                  "GRPO, too: docs/data.md, If it does not learn")
    save_checkpoint(path, network, tok.vocabulary, config)
