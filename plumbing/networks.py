"""Checkpoints of networks, and the recipes from which pretrain.py makes them."""
import hashlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import torch

from model import GPT
from plumbing.configurator import configure, must_exist, say
from plumbing.devices import RANK, wait_for_ranks
from tasks import Tokenizer


def save_network(path, network, **more):
    """Write a network, with its tokenizer and more, to a checkpoint, which is whole or absent."""
    temporary = f'{path}.{os.getpid()}.tmp'     # two runs can make one network at the same time
    try:
        torch.save({'args': network.args, 'model': network.state_dict(),
                    'vocabulary': network.tok.vocabulary, **more}, temporary)
    except RuntimeError as e:                   # the disk is full, in torch's words
        raise OSError(f"{path} could not be written: {e!s:.100}") from None
    os.replace(temporary, path)


def load_checkpoint(path):
    """Return the dict of a checkpoint."""
    # weights_only: a checkpoint is somebody's file, and a pickle can run any code.
    try:
        saved = torch.load(path, map_location='cpu', weights_only=True)
        assert 'kind' in saved['args'] or 'folder' in saved['args']
    except Exception as e:                      # many kinds, from half a file to another one
        sys.exit(f"{path} is no checkpoint of this version, or not all of it is there "
                 f"({type(e).__name__}): delete what a recipe made, and it is made anew; a folder "
                 "of transformers needs plugins/hf.py")
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


def paths_of(script):
    """Return the paths of the networks of a script, {role: path or ''}."""
    paths = {'policy': script['generator'], 'judge': '', 'reference': script['reference']}
    assert paths['policy'], "generator = '': expected a network"
    if 'judge' in script['rewards']:
        paths['judge'] = script['judge']
        assert paths['judge'], "rewards has 'judge': expected a network as judge"
    if script['reference'] == 'generator' or script['kl_beta'] > 0 and not script['reference']:
        paths['reference'] = script['generator']
    return paths


def open_networks(paths, dataset, device, load_network, compile=False, as_they_are=False):
    """Open the networks of paths {role: path}. A path is a checkpoint, the folder of a run, a
    recipe, or '' for None. Return them, and `missing`, {file: recipe}: what make_networks() has to
    make first, because it is not there, or stale and not to be taken as it is. Until then its
    plan_of() stands for it, so that mistakes are found before."""
    files = {role: file_of(must_exist(path, 'network'), dataset)
             for role, path in paths.items() if path}
    recipes = {files[role]: path for role, path in paths.items() if path.endswith('.py')}
    missing = {file: path for file, path in recipes.items() if must_be_made(file, as_they_are)}
    wait_for_ranks()                            # all have looked, before the first one makes some
    networks = {role: plan_of(missing[file], dataset, device) if file in missing
                else load_network(file, device)[0] for role, file in files.items()}
    policy = networks['policy']
    for role, network in networks.items():
        assert network.tok.vocabulary == policy.tok.vocabulary, (
            f"{files[role]}: expected the vocabulary of {files['policy']}")
        if role == 'judge':
            assert network.kind != 'fill', (
                f"the judge {files[role]} fills blanks, so it sees what it scores: expected a "
                "causal one, or a classifier")
        else:
            assert network.kind == policy.kind != 'classifier', (
                f"{files[role]}: expected a generator, of the kind of {files['policy']}")
        if role != 'policy':                    # it learns what load_network() has not frozen
            network.requires_grad_(False)
        if compile and not network.causal:      # a cache has another size at each place
            network.trunk = torch.compile(network.trunk)
    return SimpleNamespace(**dict.fromkeys(paths) | networks, missing=missing)


def plan_of(recipe, dataset, device):
    """Return the network of a recipe before it learns, as pretrain.py begins with it."""
    # run_path() returns a copy of the globals that its functions see: a file must change those.
    script = runpy.run_path('pretrain.py')['new_network'].__globals__
    configure(script, [f'--dataset={dataset}', recipe])
    network, _ = script['new_network']()
    return network.to(device)


def make_networks(missing, dataset, device):
    """Make networks {file: recipe} by pretrain.py, at the same time. Exit if one fails."""
    # One thread for each network: with two it would become another one, on two cores or eight.
    environment = os.environ | {'RANK': '0', 'WORLD_SIZE': '1', 'OMP_NUM_THREADS': '1'}
    processes = []
    for file, recipe in missing.items() if RANK == 0 else ():
        words = [f'--dataset={dataset}', f'--device={device.type}', recipe, f'--out={file}']
        say(f"$ python pretrain.py {shlex.join(words)}")
        processes.append(subprocess.Popen([sys.executable, 'pretrain.py', *words],
                                          env=environment))
    if any([process.wait() for process in processes]):
        sys.exit(1)                             # pretrain.py has said why
    wait_for_ranks()


def file_of(path, dataset):
    """Return the file or folder that has the weights of a network. The file that a recipe makes has
    a readable name, and a number of the whole path."""
    if path.endswith('.py'):
        readable = re.sub('[^a-zA-Z0-9_.-]+', '-', f'{Path(path).stem}-{dataset}')[-60:]
        return f"out/{readable}-{zlib.crc32(f'{path}-{dataset}'.encode()):08x}.pt"
    return f'{path}/ckpt.pt' if os.path.exists(f'{path}/ckpt.pt') else path


def hashes_of(files):
    """Return {path from the current folder: hash of the contents} of those files that exist."""
    return {os.path.relpath(file): hashlib.sha256(Path(file).read_bytes()).hexdigest()
            for file in files if Path(file).is_file()}


def must_be_made(file, as_it_is):
    """Return whether the network of a recipe is not there, or, unless it is taken as it is, stale:
    the recipe, a file that this includes, or the dataset was another one. Times do not count:
    copies and clones have new ones."""
    if as_it_is or not os.path.exists(file):
        return not os.path.exists(file)
    sources = load_checkpoint(file).get('sources', {})
    changed = [name for name, now in hashes_of(sources).items() if now != sources[name]]
    if changed:
        say(f"{file} is made anew: {', '.join(changed)} has changed")
    return bool(changed)
