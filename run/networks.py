"""The networks of a run: checkpoints, folders of transformers, and recipes. A recipe is a config
file of pretrain.py, which describes a network. If the network does not exist yet, it is made."""
import os
import subprocess
import sys
import zlib
from pathlib import Path

from dataset import Tokenizer, check_blanks, read_texts
from model import GPT
from run.command import configure
from run.folder import check_exists, load_checkpoint
from run.machine import barrier, rank, use_threads


def read_recipe(recipe, config):
    """Return the path of the network that a recipe makes for a run with these knobs, such as
    out/generator_arithmetic-41891b9f.pt, and the words for pretrain.py that make it. The number is
    a checksum of the network's knobs and texts, so others make another network. (After an edit of a
    script delete the networks.)"""
    import pretrain                             # not above, because it imports this file
    # The recipe comes after what it gets from the run, so what it sets itself wins.
    words = [f"--dataset={config['dataset']}"]
    if config['blank_kind'] == 'marked':
        words.append('--blank_kind=marked')
    namespace = dict(vars(pretrain))
    before, _ = configure(namespace, words)
    knobs, _ = configure(namespace, [recipe])
    assert knobs != before, (
        f"{recipe} sets no knob of pretrain.py: expected a recipe, such as those of "
        "config/networks/, a checkpoint or a folder")
    depends_on = [knobs, read_texts(knobs['dataset'])[:2]]
    if knobs['against'].endswith('.py'):        # a classifier depends on the recipe of its filler
        depends_on.append(read_recipe(knobs['against'], knobs))
    path = f'out/{Path(recipe).stem}-{zlib.crc32(repr(depends_on).encode()):08x}.pt'
    return path, [*words, recipe, f'--out={path}']


def make_networks(commands):
    """Run pretrain.py for each of {path: words}, side by side: one after the other they would make
    the first run of config/grpo_config.py 1.3 times as long."""
    running = {}
    try:
        for path, words in commands.items():
            command = [sys.executable, 'pretrain.py', *words]
            print('$', *command, flush=True)
            # it is not a rank of this run
            env = os.environ | {'RANK': '0', 'WORLD_SIZE': '1'}
            running[path] = subprocess.Popen(command, env=env)
        for path, process in running.items():
            process.wait()                      # another run may have made it in the meantime
            assert os.path.exists(path), f"{path} was not made, see the message above"
    finally:
        for process in running.values():        # on an error, and at Ctrl-C, they end with us
            process.terminate()


def open_networks(names, config, device):
    """Return the paths of the networks in names, their tokenizer, and the networks. A name is a
    checkpoint or a folder, or a recipe, whose network is made if it does not exist yet. config:
    knobs of a run. Of several ranks, the first makes networks while the others wait."""
    train, *_ = read_texts(config['dataset'])
    check_blanks(train, config['blank_kind'], config['blank_low'], config['blank_high'])
    paths = []
    missing = {}                                # {path: words for pretrain.py}
    for path in names:
        if path.endswith('.py'):
            path, words = read_recipe(path, config)
            if not os.path.exists(path):
                missing[path] = words
        else:                                   # before anything is made
            check_exists(path)
        paths.append(path)
    assert not (missing and config.get('resume')), (
        f"there is no {list(missing)} (is something new in the recipe, or in the dataset?); "
        "--resume and sample.py train no network")
    if rank() == 0:
        make_networks(missing)
    barrier()
    networks, tokenizers = zip(*[load_network(path, device) for path in paths])
    assert all(tok.vocabulary == tokenizers[0].vocabulary for tok in tokenizers), (
        f"{paths}: expected one vocabulary, see the knob tokenizer in pretrain.py")
    use_threads(networks[0])
    return paths, tokenizers[0], networks


def load_network(path, device='cpu'):
    """Return the network of a checkpoint or folder, and its tokenizer; see load_checkpoint()."""
    checkpoint = load_checkpoint(path)
    args = checkpoint['model_args']
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
            network.decide_order(1)             # its bias is loaded, too
        network.load_state_dict(checkpoint['model'])
    return network.to(device), tok
