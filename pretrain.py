"""Train a network from scratch on a dataset: a generator that fills blanks, a generator that writes
from left to right (which is also a likelihood judge), or a classifier.

    python pretrain.py config/networks/generator_arithmetic.py --max_iters=1500 --out=out/longer.pt
    python train_grpo.py --generator=out/longer.pt

The config file of a network is its recipe: it describes a network, and if that does not exist yet,
train_grpo.py makes it by this script. This file reads downwards: knobs; the networks of a run; the
loss; the run.
"""
import os
import shlex
import subprocess
import sys
import time
import zlib
from pathlib import Path

import filelock
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dataset import Dataset, Tokenizer, make_tokenizer, read_texts
from fill import fill
from judge import Scorer, classify
from model import GPT, get_lr, make_optimizers, optimizer_step
from run.command import configure, knobs_of, reading
from run.folder import begin, check_exists, load_checkpoint, save_checkpoint
from run.machine import as_numbers, init_device, n_ranks, print0, print_line, rank, use_threads
from write import write

# ---- knobs, changed by config files and --name=value ---------------------------------------------
out = 'out/network.pt'      # new checkpoint to write; a run names those of its recipes itself
dataset = 'arithmetic'      # a module of data/ | FILE.py | FILE.jsonl | FILE.txt
tokenizer = 'char'          # 'char' | 'gpt2' | another dataset, whose characters are taken. (A
                            # classifier `against` a network has that network's tokenizer.)
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
learning_rate = 4e-3        # peak; cosine to a tenth of it
warmup_iters = 50           # steps of linear warm-up
weight_decay = 0.01         # of all weights
device = 'auto'             # 'auto' | 'cpu' | 'cuda' | 'mps'
dtype = 'auto'              # matrix products: 'float32' | 'bfloat16' | 'float64' (checks) | 'auto'
seed = 1                    # of weights, batches and blanks

CHOICES = {
    'kind': ('fill', 'causal', 'classifier'),
    'positions': ('rotary', 'learned'),
    'blank_kind': ('random', 'suffix', 'answer', 'marked'),
    'device': ('auto', 'cpu', 'cuda', 'mps'),
    'dtype': ('auto', 'float32', 'bfloat16', 'float64'),
    'batch_size': range(2, 100_000),            # half of a classifier's batch is real
    'seed': range(2 ** 63),
    **dict.fromkeys(('n_layer', 'n_head', 'n_embd', 'blank_span', 'max_iters', 'eval_interval'),
                    range(1, 1_000_000_000)),
}

DEFAULTS = knobs_of(globals())


# ---- the networks of a run: checkpoints, folders of transformers, and recipes --------------------


def read_recipe(recipe, config):
    """Return the path of the network that a recipe makes for a run with these knobs, such as
    out/generator_arithmetic-41891b9f.pt, and the words for pretrain.py that make it. The number is
    a checksum of the network's knobs and texts, so others make another network. (After an edit of a
    script delete the networks.)"""
    # The recipe comes after what it gets from the run, so what it sets itself wins.
    words = [f"--dataset={config['dataset']}", recipe]
    if config['blank_kind'] == 'marked':
        words.insert(1, '--blank_kind=marked')
    knobs, functions = configure(DEFAULTS | {'CHOICES': CHOICES}, words)
    assert not functions, f"{recipe} has functions: expected a recipe, see config/networks/"
    *texts, _, reply = read_texts(knobs['dataset'])
    assert not reply or knobs['kind'] != 'fill', (
        f"{knobs['dataset']} is a world, which answers a causal generator, and {recipe} makes one "
        "that fills blanks: see config/grpo_world.py")
    depends_on = [knobs, tuple(texts)]
    if knobs['against'].endswith('.py'):        # a classifier depends on the recipe of its filler
        depends_on.append(read_recipe(knobs['against'], knobs))
    path = f'out/{Path(recipe).stem}-{zlib.crc32(repr(depends_on).encode()):08x}.pt'
    return path, [*words, f'--out={path}']


def make_networks(commands):
    """Run pretrain.py with the words of each command, side by side: one after the other they would
    make the first run of config/grpo_config.py 1.3 times as long."""
    # none of them is a rank of this run
    environment = os.environ | {'RANK': '0', 'WORLD_SIZE': '1'}
    processes = []
    try:
        for words in commands:
            command = [sys.executable, 'pretrain.py', *words]
            print0('$', shlex.join(command))
            processes.append(subprocess.Popen(command, env=environment))
        if any([process.wait() for process in processes]):
            sys.exit(1)                         # it has said why
    finally:
        for process in processes:               # after a signal
            process.terminate()


def open_networks(names, config, device):
    """Return the paths of the networks in names, their tokenizer, and the networks. A name is a
    checkpoint or a folder, or a recipe, whose network is made if it does not exist yet. config:
    knobs of a run. Of several ranks, the first makes networks while the others wait."""
    paths = []
    missing = []                                # the commands that make them
    for path in names:
        if path.endswith('.py'):
            path, words = read_recipe(path, config)
            if not os.path.exists(path):
                missing.append(words)
        else:                                   # before anything is made
            check_exists(path)
        paths.append(path)
    assert not missing or not config.get('resume'), (
        f"there is no {paths} (is something new in the recipe, or in the dataset?); --resume and "
        "sample.py train no network")
    if rank() == 0:
        make_networks(missing)
    if n_ranks() > 1:
        dist.barrier()
    networks, tokenizers = zip(*[load_network(path, device) for path in paths])
    assert all(tok.vocabulary == tokenizers[0].vocabulary for tok in tokenizers), (
        f"{paths}: expected one vocabulary, see the knob tokenizer in pretrain.py")
    use_threads(networks[0])
    return paths, tokenizers[0], networks


def load_network(path, device='cpu'):
    """Return the network of a checkpoint or folder, and its tokenizer; see load_checkpoint()."""
    checkpoint = load_checkpoint(path)
    args = checkpoint['model_args']
    with reading(path):
        if 'folder' in args:
            from hf import Pretrained
            network = Pretrained(**args)
            tok = network.tok
        else:
            network = GPT(**args)
            tok = Tokenizer(**checkpoint['vocabulary'])
        # A run of a pretrained model keeps the folder's name and weights of its own; a folder
        # alone brings its weights itself.
        if 'model' in checkpoint:
            if 'order.weight' in checkpoint['model']:
                network.decide_order(2)         # its bias is loaded, too
            network.load_state_dict(checkpoint['model'])
    return network.to(device), tok


# ---- the loss ------------------------------------------------------------------------------------


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
            labels = [data.examples[i]['label'] for i in prompts.row.tolist()]
        logits = classify(network, tokens)                                      # (n,)
        return F.binary_cross_entropy_with_logits(logits, logits.new_tensor(labels))
    where = tokens != data.tok.pad                                              # (n, T)
    if kind == 'fill' or blank_kind == 'answer':        # only what is blank
        where &= prompts.blank
    inputs = tokens
    if kind == 'fill':
        inputs = tokens.masked_fill(where, data.tok.blank_id)
    return F.cross_entropy(network.logits(network(inputs)[where]), tokens[where])


def complete(network, prompts, **more):
    """Return a Rollout of these Prompts. more: arguments of write() or fill()."""
    return (write if network.causal else fill)(network, prompts, **more)


# ---- the run -------------------------------------------------------------------------------------


if __name__ == "__main__":
    begin()
    config, _ = configure(globals(), sys.argv[1:])
    assert stop_at <= 1, f"stop_at = {stop_at}: expected a share, 1 at most"
    assert out, "out is empty: expected the name of a file"
    torch_device, _ = init_device(device, dtype)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    # Runs that start together need the same network. The first one makes it, the others wait here.
    lock = filelock.FileLock(f'{out}.lock')
    lock.acquire()
    if os.path.exists(out):                     # and a run may have begun with it
        print(f"{out} is there already; for another one delete it, or choose another --out=FILE")
        sys.exit()

    # the texts; and the filler, the network `against`
    train, held_out, verify, reply = read_texts(dataset)
    tok = make_tokenizer(tokenizer, dataset)
    filler = None
    if against:
        _, tok, (filler,) = open_networks([against], config, torch_device)
    # A classifier is never causal itself. It takes the rows of its filler, or, if it learns labels,
    # those of a causal network: prompt, answer, eos.
    causal_rows = filler.causal if filler else kind != 'fill'
    data = Dataset(train, held_out, tok, causal_rows, reply=reply, **config)
    for example in data.examples:               # those of running text are empty
        label = example.get('label')
        assert blank_kind != 'marked' or example['answer'], (
            f"{dataset} has prompts without an answer to learn from: give a trained network "
            "(--generator=FILE, --judge=FILE)")
        assert kind != 'classifier' or against or type(label) in (int, float) and 0 <= label <= 1, (
            f"{example.get('line', dataset)}: a classifier needs labels between 0 and 1, or a "
            "network `against` it")
    # Samples are checked, if they complete something that could be right.
    if kind == 'classifier' or causal_rows and blank_kind == 'marked':
        verify = None
    assert verify or stop_at == 0, (
        f"{dataset} has no answers to learn from: expected --generator=FILE, a network that was "
        "pretrained on other texts, or stop_at = 0 in this recipe")

    torch.manual_seed(seed)
    network = GPT(tok.vocab_size, block_size or data.block_size, n_layer, n_head, n_embd,
                  kind == 'causal', positions, is_classifier=kind == 'classifier').to(torch_device)
    use_threads(network)
    # Muon for hidden matrices, AdamW for the rest
    optimizers = make_optimizers(network, 'muon', weight_decay)

    began = time.time()
    held_out_losses = {}                        # {step: loss}
    for step in range(1, max_iters + 1):
        loss = loss_of(network, data, filler, 'train', batch_size, step)
        loss.backward()
        lr = get_lr(step - 1, learning_rate, learning_rate / 10, warmup_iters, max_iters)
        optimizer_step(network, optimizers, lr, grad_clip=1.0)      # also sets gradients to 0
        if step % eval_interval == 0 or step in (1, max_iters):
            # always the same held-out sequences and blanks, because the step is 0
            with torch.no_grad():
                held_out_loss = loss_of(network, data, filler, 'val', 2 * batch_size, 0)
            numbers = {'loss': loss.detach(), 'held-out loss': held_out_loss}
            if verify:                          # the share of right samples, GRPO's `start`
                r = complete(network, data.prompts('val', 2 * batch_size, 1, 0).to(torch_device))
                scores = Scorer(verify=verify).score(['verify'], r)
                numbers['held-out verify'] = scores['verify'].nan_to_num().mean()
            if step > 1:                        # the first one takes longest
                numbers['seconds left'] = (time.time() - began) / step * (max_iters - step)
            numbers = as_numbers(numbers)
            print_line(f'{out} step {step}', numbers.items())
            held_out_losses[step] = numbers['held-out loss']
            if 0 < stop_at <= numbers.get('held-out verify', 0):
                break
    best = min(held_out_losses, key=held_out_losses.get)
    if best < 0.8 * step and held_out_losses[best] < 0.95 * numbers['held-out loss']:
        print(f"the held-out loss was lowest after step {best}; since then it learns its texts by "
              f"heart: pretrain.py --max_iters={best} ends there; more texts help, or answers with "
              "steps")
    elif numbers.get('held-out verify', 1) < stop_at:
        print(f"it ends short of stop_at = {stop_at}: more --max_iters, or more texts")
    words = [f'--dataset={dataset}'] if dataset.endswith('.py') else []     # for sample.py
    save_checkpoint(out, network, tok.vocabulary, config, words=words)
