"""Train a network from scratch on a dataset: a generator that fills blanks, a generator that writes
from left to right (which is also a likelihood judge), or a classifier.

    python pretrain.py config/networks/generator_arithmetic.py
    python pretrain.py config/networks/judge_classifier.py --max_iters=600 --out=out/later.pt

The config file of a network is its recipe. train_grpo.py calls open_networks(), which runs this
script for recipes whose network does not exist yet. This file reads downwards: knobs; loss and
data; recipes (skip them at first); the run.
"""
import atexit
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F

from common import (Signals, as_numbers, barrier, configure, init_device, knobs_of, print0,
                    print_line, rank, reading, use_threads)
from data.dataset import Dataset, Tokenizer, make_tokenizer, read_texts
from judge import Scorer, classify
from model import GPT, get_lr, load_checkpoint, make_optimizers, optimizer_step, save_checkpoint
from rollout import complete

# ---- knobs, changed by config files and --name=value ---------------------------------------------
out = ''                    # checkpoint to write; '': out/NAME-NUMBER.pt, see read_recipe()
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
stop_at = 0.0               # stop if an evaluation finds this share of right samples; 0: never
optimizer = 'muon'          # 'muon': for hidden matrices, AdamW for the rest | 'adamw': for all
learning_rate = 4e-3        # peak; cosine to a tenth of it
warmup_iters = 50           # steps of linear warm-up
weight_decay = 0.01         # of all weights
beta2 = 0.95                # AdamW; beta1 is 0.9
grad_clip = 1.0             # clip gradients at this norm; 0: off
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # matrix products: 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
compile = torch.cuda.is_available()     # torch.compile the network
seed = 1                    # of weights, batches and blanks

CHOICES = {
    'kind': ('fill', 'causal', 'classifier'),
    'positions': ('rotary', 'learned'),
    'blank_kind': ('random', 'suffix', 'answer', 'marked'),
    'optimizer': ('muon', 'adamw'),
    'device': ('auto', 'cpu', 'cuda', 'mps'),
    'dtype': ('auto', 'float32', 'bfloat16', 'float64'),
    'batch_size': range(2, 100_000),            # half of a classifier's batch is real
    **dict.fromkeys(('n_layer', 'n_head', 'n_embd', 'blank_span', 'max_iters', 'eval_interval'),
                    range(1, 1_000_000_000)),
}
# A recipe is read into a copy of these, as if into the globals of a fresh process: see configure().
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
            labels = [float(data.records[i]['label']) for i in prompts.row.tolist()]
        logits = classify(network, tokens)                                      # (n,)
        return F.binary_cross_entropy_with_logits(logits, logits.new_tensor(labels))
    where = tokens != data.tok.pad                                              # (n, T)
    if kind == 'fill' or blank_kind == 'answer':        # only what is blank
        where &= prompts.blank
    return F.cross_entropy(network.logits(network(tokens, where)), tokens[where])


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
    for record in data.records or [{}]:         # {}: running text has no labels
        assert blank_kind != 'marked' or record['answer'], (
            f"{dataset} has prompts without an answer to learn from: give a trained network "
            "(--generator=FILE, --judge=FILE)")
        if kind == 'classifier' and not against:
            label = record.get('label')
            assert type(label) in (int, float) and 0 <= label <= 1, (
                f"{record.get('line', dataset)}: a classifier needs labels between 0 and 1, or a "
                "network `against` it")
    return data, verify


# ---- recipes: config files that describe a network -----------------------------------------------


def flags_for(dataset, blank_kind):
    """Return the flags that go before a recipe: the dataset of the run, and whether its blanks are
    marked. The recipe comes behind them, so what it sets itself wins."""
    flags = [f'--dataset={dataset}']
    if blank_kind == 'marked':
        flags.append('--blank_kind=marked')
    return flags


def read_recipe(namespace, words):
    """Apply config files and flags to the knobs in a namespace. Return the path of the network that
    they describe, its tokenizer, and the knobs. Unless the knob `out` names it, the path ends in a
    checksum of all that the network depends on: knobs, texts and vocabulary. So a network that
    exists is up to date; other knobs, or other texts, make another file, such as
    out/generator_arithmetic-ae43c980.pt."""
    config, _ = configure(namespace, words)
    name = config['kind']
    for word in words:                          # the last config file names the network
        if not word.startswith('-'):
            name = Path(word).stem
    tok = make_tokenizer(config['tokenizer'], config['dataset'])
    depends_on = config | {'texts': read_texts(config['dataset'])[:2], 'tok': tok.vocabulary}
    # not on where the network is, nor on where and how fast it is made
    del depends_on['out'], depends_on['device'], depends_on['compile']
    if config['stop_at'] == 0:                  # otherwise an evaluation can stop the training
        del depends_on['eval_interval']
    if config['against'].endswith('.py'):       # a classifier depends on its filler
        flags = flags_for(config['dataset'], config['blank_kind'])
        depends_on['against'], *_ = read_recipe(dict(DEFAULTS), [*flags, config['against']])
    number = zlib.crc32(repr(depends_on).encode())
    return config['out'] or f'out/{name}-{number:08x}.pt', tok, config


def load_network(path, device='cpu'):
    """Return the network of a checkpoint or folder, and its tokenizer; see load_checkpoint()."""
    checkpoint = load_checkpoint(path)
    args = checkpoint['model_args']
    with reading(path):
        if 'folder' in args:
            from pretrained import Pretrained
            network = Pretrained(**args)
            tok = network.tok
        else:
            network = GPT(**args)
            tok = Tokenizer(**checkpoint['vocabulary'])
        # A run of a pretrained model keeps the folder's name and weights of its own; a folder alone
        # brings its weights itself.
        if 'model' in checkpoint:
            network.load_state_dict(checkpoint['model'])
    return network.to(device), tok


def open_networks(names, dataset, blank_kind, device, may_train=True):
    """Return the paths of the networks in names, their tokenizer, and the networks. A name is a
    checkpoint or a folder, or a recipe. A network of a recipe that does not exist is trained first,
    side by side with others; with may_train = False it is refused. Of several ranks, the first
    trains while the others wait."""
    flags = flags_for(dataset, blank_kind)
    if rank() > 0:                              # wait until rank 0 has made them
        barrier()
    paths = []
    running = []                                # processes that make networks
    for name in names:
        path = name
        if name.endswith('.py'):
            words = [*flags, name]
            path, _, config = read_recipe(dict(DEFAULTS), words)
            # (generator and judge may be one recipe, and then it is made once)
            if path not in paths and not os.path.exists(path):
                assert may_train, (
                    f"there is no {path} (is something new in {name}, or in {dataset}?); --resume "
                    "and sample.py train no network")
                # A classifier learns from the generator, which may be in the making: wait for it.
                if config['against']:
                    for process in running:
                        process.wait()
                # A new process for each network, so that two are made side by side. WORLD_SIZE = 1:
                # it is not a rank of this run.
                command = [sys.executable, 'pretrain.py'] + words
                print0('$', *command)
                process = subprocess.Popen(command, env=os.environ | {'WORLD_SIZE': '1'})
                atexit.register(process.terminate)      # it ends with us: on an error, at Ctrl-C
                running.append(process)
        paths.append(path)
    # Wait for all of them. The message of one that fails stands above ours.
    for process in running:
        assert process.wait() == 0, f"{process.args} ended with code {process.returncode}"
    if rank() == 0:                             # let the others go on
        barrier()
    networks, tokenizers = zip(*[load_network(path, device) for path in paths])
    for path, tok in zip(paths, tokenizers):
        assert tok.vocabulary == tokenizers[0].vocabulary, (
            f"{path} has another vocabulary than {paths[0]}: see the knob tokenizer in pretrain.py")
    use_threads(networks[0])
    return paths, tokenizers[0], networks


# ---- the run -------------------------------------------------------------------------------------


if __name__ == "__main__":
    Signals()                                   # Ctrl-C and SIGTERM end without a traceback
    path, tok, config = read_recipe(globals(), sys.argv[1:])
    if os.path.exists(path):
        assert 'kind' in load_checkpoint(path)['config'], (
            f"{path} was not made by this script; choose another --out=FILE")
    torch_device = init_device(device, dtype)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    assert os.access(Path(path).parent, os.W_OK), f"{path} cannot be written"
    filler = None
    if against:
        _, filler_tok, (filler,) = open_networks([against], dataset, blank_kind, torch_device)
        assert filler_tok.vocabulary == tok.vocabulary, f"{against} has another vocabulary"
    data, verify = open_data(tok, filler)
    assert verify or stop_at == 0, f"stop_at: {dataset} has no answers or checker to measure it by"

    torch.manual_seed(seed)
    network = GPT(tok.vocab_size, data.block_size, n_layer, n_head, n_embd, kind == 'causal',
                  positions, is_classifier=kind == 'classifier').to(torch_device)
    use_threads(network)
    if compile:
        network.compile()
    optimizers = make_optimizers(network, optimizer, weight_decay, beta2)

    began = time.time()
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
            print_line(f'{path} step {step}', as_numbers(numbers))
            if stop_at > 0 and numbers.get('held-out verify', 0) >= stop_at:
                print(f"stopped after step {step}: held-out verify is {stop_at} or more")
                break
    else:                                       # no break
        if stop_at > 0:
            print(f"held-out verify never reached stop_at = {stop_at}: does the task need answers "
                  "with steps, or more data? (docs/data.md: If it does not learn)")
    save_checkpoint(path, network, tok.vocabulary, config)
