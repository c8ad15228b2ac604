"""The networks of a run: checkpoints, folders of transformers, and recipes. A recipe is a config
file of pretrain.py, which describes a network. If the network does not exist yet, it is made."""
import os
import subprocess
import sys
import zlib
from pathlib import Path

import torch.distributed as dist

from dataset import Tokenizer, read_texts
from model import GPT
from run.command import configure, reading
from run.folder import check_exists, load_checkpoint
from run.machine import n_ranks, rank, use_threads


def read_recipe(recipe, config):
    """Return the path of the network that a recipe makes for a run with these knobs, such as
    out/generator_arithmetic-41891b9f.pt, and the words for pretrain.py that make it. The number is
    a checksum of the network's knobs and texts, so others make another network. (After an edit of a
    script delete the networks.)"""
    import pretrain                             # not above, because it imports this file
    # The recipe comes after what it gets from the run, so what it sets itself wins.
    words = [f"--dataset={config['dataset']}", recipe]
    if config['blank_kind'] == 'marked':
        words.insert(1, '--blank_kind=marked')
    knobs, functions = configure(dict(vars(pretrain)), words)
    assert not functions, f"{recipe} has functions: expected a recipe, see config/networks/"
    depends_on = [knobs, read_texts(knobs['dataset'])[:2]]
    if knobs['against'].endswith('.py'):        # a classifier depends on the recipe of its filler
        depends_on.append(read_recipe(knobs['against'], knobs))
    path = f'out/{Path(recipe).stem}-{zlib.crc32(repr(depends_on).encode()):08x}.pt'
    return path, [*words, f'--out={path}']


def make_networks(commands):
    """Run pretrain.py with the words of each command, side by side: one after the other they would
    make the first run of config/grpo_config.py 1.3 times as long."""
    # none of them is a rank of this run
    alone = os.environ | {'RANK': '0', 'WORLD_SIZE': '1'}
    processes = []
    for words in commands:
        command = [sys.executable, 'pretrain.py', *words]
        print('$', *command, flush=True)
        processes.append(subprocess.Popen(command, env=alone))
    if any([process.wait() for process in processes]):
        sys.exit(1)                             # it has said why


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
                network.decide_order(1)         # its bias is loaded, too
            network.load_state_dict(checkpoint['model'])
    return network.to(device), tok
