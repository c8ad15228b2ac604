"""Checkpoints of networks, and the recipes from which pretrain.py makes them."""
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import torch

from model import GPT
from plumbing.datasets import files_of
from plumbing.devices import from_first_rank
from plumbing.process import say
from tasks import make_tokenizer

# How pretrain.py runs. With one thread it makes the same network on two cores and on eight.
ALONE = {'RANK': '0', 'WORLD_SIZE': '1', 'OMP_NUM_THREADS': '1'}
# of a judge; of a reference that of the policy
KINDS = {'judge': ('causal', 'classifier')}


def save_network(path, network, **more):
    """Write a network, with its tokenizer and more, to a checkpoint, which is whole or absent."""
    temporary = f'{path}.{os.getpid()}.tmp'     # two runs can make one network at the same time
    torch.save({'args': network.args, 'model': network.state_dict(),
                'vocabulary': network.tok.vocabulary, **more}, temporary)
    os.replace(temporary, path)


def load_checkpoint(path):
    """Return the dict of a checkpoint. A pickle could run any code, and with weights_only none."""
    return torch.load(path, map_location='cpu', weights_only=True)


def load_network(path, device):
    """Return the network of a checkpoint, with its tokenizer, and the dict of the checkpoint."""
    saved = from_first_rank(lambda: load_checkpoint(path))
    network = GPT(**saved['args']).to(device)
    # A checkpoint of plugins/order.py has more weights than a GPT.
    network.load_state_dict(saved['model'], strict='order.weight' not in saved['model'])
    network.tok = make_tokenizer(**saved['vocabulary'])
    return network, saved


def paths_of(script):
    """Return the paths of the networks of a script, {role: path or ''}."""
    reference = script['reference'] or 'generator' * (script['kl_beta'] > 0)
    return {'policy': script['generator'],
            'judge': script['judge'] if 'judge' in script['rewards'] else '',
            'reference': script['generator'] if reference == 'generator' else reference}


def open_networks(paths, dataset, device, files, load_network):
    """Open the networks of paths {role: path}. A path is a checkpoint, the folder of a run, a
    recipe, or '' for None. files, {path: file}, are those of a run that goes on, which takes them
    whatever a recipe says now. Return the networks, and the files of all paths."""
    files = files | from_first_rank(lambda: make_networks({
        path: file_of(path, dataset) for path in paths.values() if path not in {'', *files}
    }, dataset, device))
    networks = SimpleNamespace(**dict.fromkeys(paths), files=files)
    for role in filter(paths.get, paths):
        network, _ = load_network(files[paths[role]], device)
        if role != 'policy':                    # it learns what load_network() has not frozen
            network.requires_grad_(False)
        setattr(networks, role, network)
        assert network.tok.vocabulary == networks.policy.tok.vocabulary and (
            network.kind in KINDS.get(role, (networks.policy.kind,))), (
            "judge or reference: expected the vocabulary of the generator, and a fitting kind")
    return networks


def file_of(path, dataset):
    """Return the file of a network. That of a recipe is named by contents: after an edit of what it
    comes from it is another file, and the old one stays."""
    if not path.endswith('.py'):
        os.stat(path)                           # or a FileNotFoundError says so
        return f'{path}/ckpt.pt' if os.path.isdir(path) else path
    contents = [file.read_bytes() for file in [
        *files_of(path, dataset), Path('model.py'), Path('pretrain.py')]]
    return f'out/{Path(path).stem}-{zlib.crc32(repr((dataset, contents)).encode()):08x}.pt'


def make_networks(files, dataset, device):
    """Make those networks of files {path: file} that are not there, by pretrain.py, side by side.
    If one fails, end the others, and this run. Return files."""
    processes = []
    try:
        for path, file in files.items():
            if not os.path.exists(file):
                words = [sys.executable, 'pretrain.py', f'--dataset={dataset}',
                         f'--device={device.type}', path, f'--out={file}']
                say(' '.join(words))
                processes.append(subprocess.Popen(words, env=os.environ | ALONE))
        while codes := {process.poll() for process in processes} - {0}:
            if codes != {None}:
                sys.exit(1)                     # pretrain.py has said why, if it was not killed
            time.sleep(0.1)
    finally:
        for process in processes:
            process.terminate()
    return files
