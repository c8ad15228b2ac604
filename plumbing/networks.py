"""Checkpoints of networks, and the recipes from which pretrain.py makes them."""
import contextlib
import os
import subprocess
import sys
import threading
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import torch

from model import GPT
from plumbing.datasets import load, modules_of, sum_of_records
from plumbing.devices import from_first_rank
from plumbing.process import (
    Mistake,
    bar,
    exit_at_sigterm,
    expect,
    near,
    say,
    split_words,
    start,
    writing,
)
from tasks import make_tokenizer

# How pretrain.py runs. With one thread it makes the same network on two cores and on eight.
ALONE = {'RANK': '0', 'WORLD_SIZE': '1', 'OMP_NUM_THREADS': '1', 'PRETRAIN_STEPS': '1'}
# Programs that decide what a network learns, besides the files of its recipe and of its dataset.
PROGRAMS = ('model.py', 'tasks.py', 'pretrain.py', 'plumbing/optim.py')


# ---- checkpoints ---------------------------------------------------------------------------------
def save_network(path, network, keep_older=False, **more):
    """Write a network, with its tokenizer and more, to a checkpoint, which is whole or absent.
    keep_older: rename an older file of this path."""
    temporary = f'{path}.{os.getpid()}.tmp'     # two runs can make one network at the same time
    try:
        with writing(path), open(temporary, 'wb') as file:
            torch.save({'args': network.args, 'model': network.state_dict(),
                        'vocabulary': network.tok.vocabulary, **more}, file)
        if keep_older and os.path.exists(path):
            move_aside(path)
        with writing(path):
            os.replace(temporary, path)
    except RuntimeError as e:                   # of torch, about the size that it has written
        raise Mistake(f"{path} cannot be written: is the disk full? ({e!s:.80})") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)                # after a full disk


def check_writable(path):
    """Refuse a path to which no network can be written, before hours of training."""
    expect(not Path(path).is_dir() and Path(path).name, f"{path} is a folder")
    expect(Path(path).is_file() or not Path(path).exists(), f"{path} is no file")
    if Path(path).is_file():
        expect('step' not in load_checkpoint(path), f"{path} is the checkpoint of a run: choose "
               "another one")
    temporary = Path(f'{path}.{os.getpid()}.tmp')
    with writing(path):
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(b'')
        temporary.unlink()


def move_aside(path):
    """Rename a file or a folder, path -> path-1, and say so."""
    number = 1
    while os.path.lexists(older := f'{path}-{number}'):
        number += 1
    with writing(older):
        os.rename(path, older)
    say(f'an older one is now {older}')


def load_checkpoint(path):
    """Return the dict of a checkpoint. A pickle could run any code, and with weights_only none."""
    expect(not os.path.isdir(path), f"{path} is a folder: expected a file")
    expect(os.path.isfile(path), f"there is no {path}. (A resumed run, and sample.py, need the "
           "networks with which the run began.)")
    again = ". Without this file it is made again" if str(path).startswith('out/') else ''
    try:
        with zipfile.ZipFile(path) as file:     # torch does not look at its checksums
            damaged = file.testzip()
        expect(not damaged, f"{path} is damaged, in its part {damaged}{again}")
        return torch.load(path, map_location='cpu', weights_only=True)
    except Mistake:
        raise
    except Exception as e:                      # of many kinds
        raise Mistake(f"{path} is no checkpoint, or it is damaged: {e!r:.200}{again}") from None


def load_network(path, device):
    """Return the network of a checkpoint, with its tokenizer, and the dict of the checkpoint."""
    saved = from_first_rank(lambda: load_checkpoint(path))
    is_ours = isinstance(saved, dict) and {'args', 'model', 'vocabulary'} <= saved.keys()
    expect(is_ours, f"{path} is no network that pretrain.py has made")
    expect('vocab_size' in saved['args'], f"{path} is a run of a network of transformers: it needs "
           "the word plugins/hf.py")
    try:
        network = GPT(**saved['args']).to(device)
        # A checkpoint of plugins/order.py has more weights than a GPT.
        network.load_state_dict(saved['model'], strict='order.weight' not in saved['model'])
        network.tok = make_tokenizer(**saved['vocabulary'])
    except (TypeError, RuntimeError) as e:      # of torch, about names and shapes
        raise Mistake(f"{path} has other weights than model.py: {' '.join(str(e).split())[:200]}"
                      ) from None
    expect(all(x.isfinite().all() for x in network.parameters()), f"{path} has weights that are "
           "not finite")
    return network, saved


# ---- open them, or make them ---------------------------------------------------------------------
def paths_of(script):
    """Return the paths of the networks of a script, {role: path or ''}."""
    reference = script['reference']
    if reference == 'generator' or not reference and script['kl_beta'] > 0:
        reference = script['generator']
    return {'policy': script['generator'], 'reference': reference,
            'judge': script['judge'] if 'judge' in script['rewards'] else ''}


def open_networks(paths, dataset, device, files, load_network):
    """Open the networks of paths {role: path}. A path is a checkpoint, the folder of a run, a
    recipe, perhaps with words of its own, or '' for None. files {path: file}: a resumed run opens
    the files with which it began, whatever a recipe says now. Return the networks, with .files."""
    paths = from_first_rank(lambda: paths)      # other machines may name them by other paths
    resumed = {*files}
    files = files | from_first_rank(lambda: make_networks({
        path: file_of(path, dataset) for path in paths.values() if path not in {'', *files}
    }, dataset, device))
    for path in sorted(resumed & {*paths.values()}):
        if not is_still(path, files[path], dataset):
            say(f'{path} would make another network now: the run keeps {files[path]}')
    networks = SimpleNamespace(**dict.fromkeys(paths), files=files)
    for role in filter(paths.get, paths):
        network, saved = load_network(files[paths[role]], device)
        check_records(role, paths[role], paths[role] in resumed, saved, dataset)
        if role != 'policy':                    # it learns what load_network() has not frozen
            network.requires_grad_(False)
        setattr(networks, role, network)
        check_fit(role, network, networks.policy)
    return networks


def is_still(path, file, dataset):
    """Is a path no recipe, or one that makes the network of a file?"""
    try:
        return not words_of(path)[0].endswith('.py') or file_of(path, dataset) == file
    except (Mistake, OSError):                  # the recipe is gone, or cannot be read any more
        return False


def check_records(role, path, is_resumed, saved, dataset):
    """Refuse a dataset that has changed, or whose texts() is another one in each process: what a
    run holds out would be known to its networks. Say it if the policy has learned another one."""
    learned = saved.get('learned') if isinstance(saved, dict) else None
    if is_resumed or not learned:
        return
    expect(learned[0] != dataset or learned[1] == sum_of_records(dataset), (
        f"the {role} has learned other records than {dataset} has now. Was it edited since? Then "
        f"make {path} anew. (Or its texts() goes through a set, or has no seed)"))
    if learned[0] != dataset and role == 'policy' and '--dataset=' not in path:
        say(f"{path} has learned {learned[0]}, and this run has {dataset}")


def check_fit(role, network, policy):
    """Refuse a judge or a reference that does not fit the policy."""
    expect(network.tok.vocabulary == policy.tok.vocabulary, f"the {role} has another vocabulary "
           "than the generator: pretrain.py --tokenizer=DATASET_OF_THE_GENERATOR")
    kinds = ('causal', 'classifier') if role == 'judge' else (policy.kind,)
    expect(role == 'policy' or network.kind in kinds, f"the {role} is a {network.kind!r} network: "
           f"expected one of {kinds}")


def file_of(path, dataset):
    """Return the file of a network. The file of a recipe is named by what the network would be made
    of: after an edit of any of it, it is another file, and the old one stays."""
    recipe, *words = words_of(path)
    if not recipe.endswith('.py'):
        expect(Path(path).exists(), f"there is no network {path}: expected a checkpoint, the "
               "folder of a run, a recipe of config/networks/, or, with the word plugins/hf.py, a "
               f"language model{near(f'config/networks/{Path(path).stem}.py', recipes())}")
        file = f'{path}/ckpt.pt' if os.path.isdir(path) else path
        expect(Path(file).is_file(), f"{path} has no ckpt.pt: a folder of transformers needs the "
               "word plugins/hf.py, and a run must have saved itself")
        return file
    contents = [(str(file), file.read_bytes()) for file in sources_of(recipe, dataset, words)]
    name = zlib.crc32(repr((dataset, words, contents)).encode())
    return f'out/{Path(recipe).stem}-{name:08x}.pt'


def recipes():
    return [*map(str, sorted(Path('config/networks').glob('*_*.py')))]


def words_of(path):
    """Return the words of the path of a network: a recipe can have some, RECIPE.py --seed=2."""
    return split_words(path) if '.py ' in path else [path]


def open_recipe(recipe, dataset, words=()):
    """Execute a recipe. Return the globals of pretrain.py as it sets them, and the paths of the
    files that were executed."""
    import pretrain  # which imports this file
    from plumbing.configurator import configure, knobs_of
    script, executed = dict(vars(pretrain)), []
    try:
        configure(script, [f'--dataset={dataset}', recipe], executed, say=lambda text: None)
    except Mistake as e:
        raise Mistake(f"{e} ({recipe} was taken as the recipe of a network)") from None
    expect(script['dataset'] == dataset, f"{recipe} sets `dataset`, which the run sets, too. If a "
           f"network learns another one, write '{recipe} --dataset=NAME' where the run names it")
    configure(script, words, say=lambda text: None)
    changed = [x for x in knobs_of(script) if script[x] != vars(pretrain)[x] and x != 'dataset']
    brought = [x for x in script.keys() - vars(pretrain).keys() if x not in ('include', 'labelled')]
    expect(changed or not brought, f"{recipe} is no recipe of a network: it brings {brought[:3]}, "
           "and sets no knob of pretrain.py")
    expect(not {'out', 'device'} & {*changed}, f"{recipe}: the run chooses device, and where the "
           "network is saved")
    return script, executed


def sources_of(recipe, dataset, words=()):
    """Return the files (Paths) that decide what pretrain.py makes of a recipe: those that are
    executed, what they import, what the datasets are made of, and PROGRAMS."""
    script, executed = open_recipe(recipe, dataset, words)
    files = [Path(x) for x in PROGRAMS]
    for file in executed:
        files += modules_of(file)
    tokenizer = {script['tokenizer']} - {'char', 'gpt2'}
    for name in {script['dataset']} | tokenizer:
        files += load(name).sources
    for name, value in script.items():          # FILLER = RECIPE.py: it uses another network
        if name.isupper() and isinstance(value, str) and value.startswith('config/networks/'):
            files += sources_of(value, dataset)
    return sorted({*files})


@exit_at_sigterm()
def make_networks(files, dataset, device):
    """Make those networks of files {path: file} that are not there, by pretrain.py, side by side.
    If one fails, or this run is stopped, end the others. Return files."""
    processes, threads, bars = [], [], []
    try:
        for path, file in files.items():
            if os.path.exists(file):
                continue
            recipe, *words = words_of(path)
            say(f"making {file} once, from {recipe}")
            process = start(
                [sys.executable, 'pretrain.py', recipe, f'--dataset={dataset}', *words,
                 f'--device={device.type}', f'--out={file}'],
                env=os.environ | ALONE, stdout=subprocess.PIPE, text=True,
                start_new_session=True)         # Ctrl-C is for this process, which ends them
            processes.append(process)
            bars.append(bar(None, Path(recipe).stem, position=len(bars)))
            threads.append(threading.Thread(target=show_steps, args=(process.stdout, bars[-1])))
            threads[-1].start()
        while codes := {process.poll() for process in processes} - {0}:
            if codes != {None}:
                code = max(codes - {None}, key=abs)
                why = "its exit code is -9: it was killed, perhaps because memory was short"
                raise Mistake(f"pretraining failed, {why if code == -9 else 'see above'}")
            for steps in bars:                  # so that their clocks go on
                steps.refresh()
            threads[-1].join(0.5)
    finally:
        for process in processes:
            process.terminate()
        for thread in threads:
            thread.join()
    return files


def show_steps(lines, steps):
    """Show what pretrain.py prints. A line `STEP of N` moves the bar."""
    for line in lines:
        step, is_step, total = line.rstrip('\n').partition(' of ')
        if is_step and step.isdigit() and total.isdigit():
            steps.total = int(total)
            steps.update(int(step) - steps.n)
        else:
            say(line.rstrip('\n'))
    steps.close()
