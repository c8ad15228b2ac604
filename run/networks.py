"""The networks of a run: checkpoints, folders of transformers, and recipes. A recipe is a config
file of pretrain.py, which describes a network. If the network does not exist yet, it is made."""
import atexit
import os
import runpy
import shlex
import subprocess
import sys
import zlib
from pathlib import Path

import torch

from dataset import Tokenizer, check_blanks, make_tokenizer, read_texts
from model import GPT
from run.command import configure, find, reading
from run.folder import check_exists, checksum, load_checkpoint
from run.machine import barrier, print0, rank, use_threads

PRETRAIN = Path(__file__).parent.parent / 'pretrain.py'


def flags_for(dataset, blank_kind):
    """Return the flags that go before a recipe: the dataset of the run, and whether its blanks are
    marked. The recipe comes behind them, so what it sets itself wins."""
    flags = [f'--dataset={dataset}']
    if blank_kind == 'marked':
        flags.append('--blank_kind=marked')
    return flags


def default_knobs():
    """Return the knobs of pretrain.py as they are in a fresh process, for read_recipe()."""
    # An import would lead in a circle, because pretrain.py imports this file. runpy runs the
    # script up to its `if __name__ == "__main__":`, and returns its globals.
    return runpy.run_path(str(PRETRAIN))['DEFAULTS']


def read_recipe(namespace, words):
    """Apply config files and flags to the knobs in a namespace. Return the path of the network that
    they describe, its tokenizer, and the knobs. Unless the knob `out` names it, the path ends in a
    checksum of knobs, texts and vocabulary. So other knobs, or other texts, make another file, such
    as out/generator_arithmetic-ae43c980.pt. (After an edit of a script delete the networks.)"""
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
        assert config['against'] not in words, f"{config['against']} is against itself"
        flags = flags_for(config['dataset'], config['blank_kind'])
        depends_on['against'], *_ = read_recipe(default_knobs(), [*flags, config['against']])
    elif config['against']:
        depends_on['against'] = checksum(load_network(find(config['against']))[0])
    number = zlib.crc32(repr(depends_on).encode())
    return config['out'] or f'out/{name}-{number:08x}.pt', tok, config


def load_network(path, device='cpu', checkpoint=None):
    """Return the network of a checkpoint or folder, and its tokenizer; see load_checkpoint().
    checkpoint: what that has returned."""
    checkpoint = checkpoint or load_checkpoint(path)
    args = checkpoint['model_args']
    with reading(path):
        if 'folder' in args:
            assert os.path.isdir(args['folder']), (
                f"{args['folder']}, the model from which {path} started, is not there")
            from hf import Pretrained
            network = Pretrained(**args)
            tok = network.tok
        else:
            network = GPT(**args)
            tok = Tokenizer(**checkpoint['vocabulary'])
        # A run of a pretrained model keeps the folder's name and weights of its own; a folder alone
        # brings its weights itself.
        if 'model' in checkpoint:
            if 'order.weight' in checkpoint['model']:
                network.decide_order(1)         # its bias is loaded, too
            network.load_state_dict(checkpoint['model'])
    return network.to(device), tok


def open_networks(names, config, device):
    """Return the paths of the networks in names, their tokenizer, and the networks. A name is a
    checkpoint or a folder, or a recipe. The network of a recipe is made if it does not exist yet,
    unless the run is resumed. config: knobs of a run. Of several ranks, the first makes networks
    while the others wait."""
    train, _, _ = read_texts(config['dataset'])
    check_blanks(train, config['blank_kind'], config['blank_low'], config['blank_high'])
    if rank() > 0:                              # wait until rank 0 has made them
        barrier()
    # Networks are made side by side: one after the other they would make the first run of
    # config/grpo_config.py 1.3 times as long.
    paths = []
    running = []                                # processes that make networks
    for name in names:                          # before anything is made
        if not name.endswith('.py'):
            check_exists(find(name))
    for name in names:
        path = find(name)
        # A recipe. (Not path: a checkpoint could name evil.py/, and find() drops the slash.)
        if name.endswith('.py'):
            path = make_network(path, config, running)
        paths.append(path)
    wait_for(running)
    for name, path in zip(names, paths):
        assert os.path.exists(path), (
            f"{name} was made, but is not {path}: is texts() of {config['dataset']} the same, in "
            "the same order, in each process?")
    if rank() == 0:                             # let the others go on
        barrier()
    networks, tokenizers = zip(*[load_network(path, device) for path in paths])
    for path, tok in zip(paths, tokenizers):
        assert tok.vocabulary == tokenizers[0].vocabulary, (
            f"{path} has another vocabulary than {paths[0]}: see the knob tokenizer in pretrain.py")
    use_threads(networks[0])
    if 'folder' in networks[0].args and config.get('out_dir'):      # else nothing is trained
        from hf import warn_of_memory                       # which needs transformers
        warn_of_memory(networks[0], train, config)
    return paths, tokenizers[0], networks


def make_network(recipe, config, running):
    """Return the path of the network of a recipe. If it does not exist, start a process that makes
    it, and add that to the list of running ones."""
    words = flags_for(config['dataset'], config['blank_kind']) + [recipe]
    path, _, knobs = read_recipe(default_knobs(), words)
    assert not knobs['out'], (                  # it would stay after an edit
        f"{recipe} sets `out`, which a recipe of a run cannot do: expected the network itself, "
        f"{path}, or a recipe without it")
    command = [sys.executable, os.path.relpath(PRETRAIN)] + words
    # (generator and judge may be one recipe)
    if os.path.exists(path) or command in [process.args for process in running]:
        return path
    assert not config.get('resume'), (
        f"there is no {path} (is something new in {recipe}, or in {config['dataset']}?); "
        "--resume and sample.py train no network")
    if knobs['against']:                        # it learns from a network that may be in the making
        wait_for(running)
    print0('$', *command)
    # it is not a rank of this run
    process = subprocess.Popen(command, env=os.environ | {'RANK': '0', 'WORLD_SIZE': '1'})
    atexit.register(process.terminate)          # it ends with us: on an error, at Ctrl-C
    running.append(process)
    return path


def more_pretraining(recipe, config):
    """Return how to make a generator that has been pretrained for longer than the one of a run's
    config, which was made by this recipe: a command, with twice the steps."""
    if not recipe.endswith('.py'):
        return f"what made {recipe}, with more --max_iters, or with texts that are nearer to right"
    words = flags_for(config['dataset'], config['blank_kind']) + [recipe]
    n = load_checkpoint(config['generator'])['config']['max_iters']
    return (f"python {shlex.join([os.path.relpath(PRETRAIN), *words])} --max_iters={2 * n} "
            "--stop_at=0 --out=out/more.pt, and then --generator=out/more.pt")


def wait_for(running):
    """Wait for processes to end. The message of one that fails stands above ours."""
    for process in running:
        assert process.wait() == 0, f"{process.args} ended with code {process.returncode}"
