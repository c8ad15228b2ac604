"""Checkpoints of networks, and the recipes from which they are made."""
import os
import subprocess
import sys
from types import SimpleNamespace
from urllib.parse import quote

import torch

from model import GPT
from plumbing.configurator import must_exist
from plumbing.datasets import path_of
from plumbing.devices import RANK, wait_for_ranks
from tasks import Tokenizer


def save_network(path, network, **more):
    """Write a network, with its tokenizer and more, to a checkpoint, which is whole or absent."""
    temporary = f'{path}.{os.getpid()}.tmp'     # two runs can make one network at the same time
    torch.save({'args': network.args, 'model': network.state_dict(),
                'vocabulary': network.tok.vocabulary, **more}, temporary)
    os.replace(temporary, path)


def load_checkpoint(path):
    """Return the dict of a checkpoint."""
    # weights_only: a checkpoint is somebody's file, and a pickle can run any code.
    try:
        saved = torch.load(path, map_location='cpu', weights_only=True)
        assert 'kind' in saved['args'] or 'folder' in saved['args']
    except Exception as e:                      # many kinds, from half a file to another one
        sys.exit(f"{path} is no checkpoint of this version, or not all of it is there "
                 f"({type(e).__name__}); a folder of transformers needs plugins/hf.py")
    return saved


def load_network(path, device):
    """Return the network of a checkpoint, with its tokenizer, and the dict of the checkpoint."""
    saved = load_checkpoint(path)
    assert 'folder' not in saved['args'], f"{path} is a network of transformers: add plugins/hf.py"
    network = GPT(**saved['args']).to(device)
    # A checkpoint of plugins/passes.py has more weights than a GPT.
    missing, _ = network.load_state_dict(saved['model'], strict=False)
    assert not missing, f"{path} lacks weights: {missing}"
    network.tok = Tokenizer(**saved['vocabulary'])
    return network, saved


def open_networks(paths, dataset, device, load_network, compile=False, as_they_are=False):
    """Open the networks of paths {name: path}. A path is a checkpoint, the folder of a run, a
    recipe, or '' for None. A recipe is a config file of pretrain.py, which makes a network that is
    missing, or stale and not to be taken as it is."""
    assert paths['policy'], "generator = '': expected a network"
    files = {name: file_of(must_exist(path, 'network'), dataset)
             for name, path in paths.items() if path}
    recipes = {files[name]: path for name, path in paths.items() if path.endswith('.py')}
    n_threads = max(1, torch.get_num_threads() // len({*files.values()}))   # of each network
    environment = os.environ | {'RANK': '0', 'WORLD_SIZE': '1', 'OMP_NUM_THREADS': str(n_threads)}
    processes = []
    for out, recipe in recipes.items():
        is_there = os.path.exists(out) and (as_they_are or not is_stale(out, recipe))
        if RANK == 0 and not is_there:
            words = [f'--dataset={dataset}', f'--device={device.type}', recipe, f'--out={out}']
            print('$ python pretrain.py', *words, flush=True)
            processes.append(subprocess.Popen([sys.executable, 'pretrain.py', *words],
                                              env=environment))
    if any([process.wait() for process in processes]):
        sys.exit(1)                             # pretrain.py has said why
    wait_for_ranks()                            # for the first rank, which has made networks
    networks = {name: load_network(path, device)[0] for name, path in files.items()}
    for name, network in networks.items():
        assert network.tok.vocabulary == networks['policy'].tok.vocabulary, (
            f"{files[name]}: expected the vocabulary of {files['policy']}")
        if name != 'judge':
            assert network.causal == networks['policy'].causal and (
                network.args.get('kind') != 'classifier'), (
                f"{files[name]}: expected a generator, of the kind of {files['policy']}")
        if name != 'policy':                    # it learns what load_network() has not frozen
            network.requires_grad_(False)
        if compile:
            network.trunk = torch.compile(network.trunk)
    return SimpleNamespace(**dict.fromkeys(paths) | networks)


def file_of(path, dataset):
    """Return the file or folder that has the weights of a network. What a recipe makes is
    out/RECIPE-DATASET.pt."""
    if path.endswith('.py'):
        name = f"{path.removeprefix('config/networks/')[:-3]}-{dataset}"
        return f"out/{quote(name, safe='')}.pt"             # '/' is quoted
    return f'{path}/ckpt.pt' if os.path.exists(f'{path}/ckpt.pt') else path


def is_stale(path, recipe):
    """Return whether a network is older than its recipe, a file that this includes, or its
    dataset."""
    saved = load_checkpoint(path)
    sources = [recipe, path_of(saved['dataset']), *saved['files']]
    changed = [os.path.getmtime(file) for file in sources if os.path.exists(file)]
    return os.path.getmtime(path) <= max(changed)
