"""Poor man's configurator, after nanoGPT's: config files and --name=value flags change the globals
of a script, from left to right.

A config file is executed in these globals. So it can set a knob, bring a reward, or replace a
function of the script. include('plugins/...') in a config file executes another one. Only plugins,
the files of a folder plugins/, bring knobs. Plugins are executed before all other files, in the
order of PLUGINS and then yours (config_files.py). Knobs are checked once, after the last word.

exec() has a price: an editor finds no definition of what a config file replaces. It stays because a
change is then a file of five lines, and needs no hook in the script."""
import ast
import contextlib
import difflib
import inspect
import os
import re
import sys
from pathlib import Path

from plumbing import process
from plumbing.config_files import TYPES, ConfigFiles, knobs_of, plugins_of
from plumbing.datasets import is_dataset, path_of
from plumbing.process import Mistake, expect
from plumbing.returns import check_returns
from plumbing.rewards import check_rewards
from plumbing.slips import ROOT, SCRIPTS

# The choices of knobs that are texts, also of plugins and of other scripts.
CHOICES = {
    'blank_kind': ('random', 'answer'), 'kind': ('fill', 'causal', 'classifier'),
    'optimizer': ('muon', 'adamw'), 'positions': ('learned', 'rotary'),
    'adv_norm': ('std', 'batch', 'none'), 'loss_norm': ('token', 'sequence', 'constant'),
    'kl_estimate': ('exact', 'k1', 'k2', 'k3'), 'device': ('auto', 'cpu', 'cuda', 'mps'),
    'dtype': ('float32', 'bfloat16', 'float64'),
    'fill_order': ('random', 'left', 'confident', 'learned')}
# Which function reads a knob, and nobody else.
READ_BY = {'adv_norm': 'advantages', 'loss_norm': 'token_weights', 'clip_low': 'policy_loss',
           'clip_high': 'policy_loss', 'kl_estimate': 'kl_penalty'}
TOKENIZERS = 'char', 'gpt2'      # or another dataset
# The smallest value of knobs that are numbers; of others it is 0.
SMALLEST = {'top_p': 1e-6, 'temperature': 1e-3, 'group_size': 2, 'eval_prompts': 2,
            'n_steps': 3} | dict.fromkeys(
    'batch_size gradient_accumulation_steps epochs mini_batches log_interval eval_interval n_layer '
    'n_head n_embd num_samples n_fill_steps lora_rank jobs length'.split(), 1)
LARGEST = dict.fromkeys('blank_low blank_high stop_at top_p learning_rate clip_low'.split(), 1)
MOST = 1e18                     # of other numbers: what a tensor can hold
# Knobs of which the first is never above the second.
ORDERED = ('blank_low', 'blank_high'), ('min_lr', 'learning_rate')
# Knobs that are paths, and may differ between machines.
PATHS = {'dataset', 'generator', 'judge', 'reference', 'out_dir', 'out'}
DASHES = '-\u2010\u2011\u2012\u2013\u2014\u2015\u2212'        # what a text program makes of --


def configure(script, words, executed=None, say=process.say):
    """Apply the words of a command line to the globals of a script. Return its knobs, {name:
    value}. executed: a list, to which the paths of the executed files are appended."""
    if {'-h', '--help'} & {*words}:             # the docstring, and the knobs
        head = Path(script['__file__']).read_text('utf-8').split('\n\n\n')[0]
        process.say(str(script['__doc__']) + '\n' + ''.join(head.partition('# ---- knobs')[1:]))
        sys.exit()
    expect(not isinstance(words, str), f"configure(..., {words!r}): expected a list of words")
    expect(Path.cwd() == ROOT, f"run this from the folder of train_grpo.py: cd {ROOT}")
    for word in words:
        check_word(word, script)
    paths = [Path(word).resolve() for word in words if not word.startswith('--')]
    expect(len(paths) == len({*paths}), f"{' '.join(words)}: a config file is there twice")
    recipes = [path.stem for path in paths if path.parent == ROOT / 'config/networks'
               and path.stem.startswith(('generator_', 'judge_'))]
    expect(len(recipes) < 2, f"{' '.join(recipes)}: one network at a time")
    # A config file that imports train_grpo gets the one that runs, and no second one.
    if Path(script['__file__']).stem == 'train_grpo':
        sys.modules['train_grpo'] = sys.modules[script['__name__']]
    files = ConfigFiles(script, [] if executed is None else executed)
    known = knobs_of(script)
    plugins = plugins_of([word for word in words if not word.startswith('--')])
    expect(not plugins or 'rewards' in script, f"{plugins[:1]}: a plugin is for train_grpo.py")
    files.plugins |= {Path(path).resolve() for path in plugins}
    for path in plugins:
        files.include(path)
    known = knobs_of(script) | known            # the types of ours, and what plugins bring
    for word in words:          # now, too: a file may say out_dir = f'out-{seed}'
        name, _, text = word.removeprefix('--').partition('=')
        value = value_of(text, type(known.get(name)))
        if word.startswith('--') and type(value) is type(known.get(name)):
            script[name] = value
    for word in words:
        if word.startswith('--'):
            name, _, text = word.removeprefix('--').partition('=')
            script[name] = value_of(text, type(known.get(name)))
            check_name(name, known, '')
        else:
            files.include(word)
            for name in knobs_of(script).keys() - known.keys():
                check_name(name, known, f'{word}: ')
    for name, value in known.items():
        default = value if type(value) in (int, float) else 0
        script[name] = checked(name, script.get(name), type(value), default)
        expect(script[name] != '' or value == '', f"{name} is empty: expected a text")
    for low, high in ORDERED:
        expect(low not in script or script[low] <= script[high], (
            f"{low} = {script.get(low)} is above {high} = {script.get(high)}"))
    expect(isinstance(script.get('state', {}), dict), f"state = {script.get('state')!r:.80}: "
           "expected a dict, as it was")
    if 'tokenizer' in script:
        name = script['tokenizer']
        expect(name in TOKENIZERS or path_of(name).is_file(), f"tokenizer = {name!r}: expected "
               "'char', 'gpt2', or another dataset, whose characters are taken")
    if 'rewards' in script:
        check_rewards(script, {*files.at_start})
        check_returns(script)
    if words:
        say_idle(script, words, say)
    files.report(say, any(word.startswith('--rewards=') for word in words))
    return knobs_of(script)


def say_idle(script, words, say):
    """Say which knobs of the command line change nothing in this run."""
    chosen = {word.removeprefix('--').partition('=')[0] for word in words if word.startswith('--')}
    idle = {}
    if 'judge' not in script.get('rewards', 'judge'):
        idle['judge'] = "`rewards` has no 'judge'"
    if script.get('kl_beta') == 0:
        idle['kl_estimate'] = 'kl_beta is 0'
    if script.get('blank_kind') == 'answer':
        idle |= dict.fromkeys(('blank_low', 'blank_high'), "blank_kind is 'answer'")
    if script.get('epochs') == script.get('mini_batches') == 1:
        idle |= dict.fromkeys(('clip_low', 'clip_high'), 'a step has one update')
    for knob, name in READ_BY.items() if 'rewards' in script else ():
        code = getattr(inspect.unwrap(script[name]), '__code__', None)
        if code and not {knob, 'inner'} & {*code.co_names, *code.co_varnames}:
            idle[knob] = f'{Path(code.co_filename).name} replaces {name}()'
    if 'warmup_iters' in chosen and script['warmup_iters'] >= script['max_iters']:
        say(f"warmup_iters = {script['warmup_iters']}: the run ends before its learning_rate is "
            "reached")
    if 'clip_high' in chosen and script['clip_high'] >= 1:
        say(f"clip_high = {script['clip_high']}: ratios up to {1 + script['clip_high']} are not "
            "clipped, because it is the distance from 1")
    for name in sorted(chosen & idle.keys()):
        say(f"{name} = {script[name]}: nobody asks it, because {idle[name]}")


# ---- words ---------------------------------------------------------------------------------------
def check_word(word, script):
    """Refuse a word that is neither --name=value nor the path of a config file, and say how it is
    spelt. (Plugins may bring more knobs, so an unknown --name=value is refused later.)"""
    expect(word.strip(), f"{word!r}: an empty word. Is a variable of the shell empty, or is there "
           "a space behind a backslash?")
    first = word.split()[0]
    expect(first == word or not Path(first).is_file(), f"{word!r}: several words in one pair of "
           "quotes")
    expect('{' in word or not word.endswith('}'), f"{word}: a value with a space needs quotes: "
           "--rewards=\"{'verify': 1.0}\"")
    name, has_value, text = word.lstrip('-').partition('=')
    path = Path(word)
    expect(name in script or Path(text).suffix != '.py', (
        f"{word}: there is no knob {name}. For a config file write {text}"))
    if word.startswith('-'):
        value = 'True' if type(script.get(name)) is bool else 'VALUE'
        example = f'--{name}={value}' if name in script else '--max_iters=4'
        expect(word.startswith('--') and has_value, (
            f"{word}: expected --name=value, such as {example}"))
    elif has_value and not path.is_file():
        name = name.lstrip(DASHES)
        check_name(name, knobs_of(script), '')
        raise Mistake(f"{word}: write --{name}={text}")
    elif path.suffix in ('.jsonl', '.txt') or path.is_file() and is_dataset(path):
        more = "" if path.is_file() else ". (It is not there. A path with a space needs quotes)"
        raise Mistake(f"{word} is a dataset: write --dataset={word}{more}")
    else:
        expect(path.resolve() not in SCRIPTS, f"{word} is a script, and no config file")
        is_network = path.is_file() and path.resolve().parent == ROOT / 'config/networks'
        expect('rewards' not in script or not is_network, f"{word} is the recipe of a network: "
               f"write --generator={word} or --judge={word}")
        expect(path.suffix == '.py' and path.is_file(), (
            f"{word}: expected --name=value, or the path of a config file, FILE.py. "
            f"Near: {near_paths(path) or 'none'}"))


def near_paths(path):
    """Return config files whose names are like a path."""
    folders = '.', 'config', 'config/papers', 'config/networks', 'plugins', 'data'
    files = [str(x) for folder in folders
             for x in sorted(Path(folder).glob('*.py'))]
    files += [str(x) for x in sorted(path.parent.glob('*.py')) if str(x) not in files]
    stem = path.stem.removeprefix('grpo_')
    return [x for x in files if stem and stem in Path(x).stem][:3] or difflib.get_close_matches(
        str(path), files, 3, 0.7)


# ---- knobs ---------------------------------------------------------------------------------------
def value_of(text, kind):
    """Return the value of a flag, for a knob of this type."""
    if kind is not str:
        with contextlib.suppress(ValueError, SyntaxError):              # else it stays a text
            tree = ast.parse(text.strip(), mode='eval').body
            if isinstance(tree, ast.Dict):
                keys = [ast.unparse(x) for x in tree.keys if x]
                expect(len(keys) == len({*keys}), f"{text}: {max(keys, key=keys.count)} is there "
                       "twice")
            return ast.literal_eval(tree)
    return text


def check_name(name, known, where):
    """Refuse a knob that nobody knows. where: the config file that sets it, or ''."""
    if name in known:
        return
    plugins = [str(x) for x in [*Path('plugins').glob('*.py'), Path('pretrain.py')]
               if f'\n{name} = ' in x.read_text('utf-8')]
    candidates = plugins or difflib.get_close_matches(name, known) or [
        x for x in known if x.startswith(name)]
    hint = f". Near: {candidates}" if candidates else ''
    if where == '':
        hint += ". (docs/words.md has the names of TRL and verl)"
    else:
        hint += (". (A constant or a helper of yours begins with _ or a capital. A dataset has "
                 "texts(), and the recipe of a network has knobs of pretrain.py)")
    raise Mistake(f"{where}there is no knob {name}{hint}")


def checked(name, value, kind, default=0):
    """Return the value of a knob, or refuse it: it has another type, or is out of range. (A knob of
    a plugin may be below 0 if its default is.)"""
    if kind is float and type(value) is int:
        value = float(value)
    if name in PATHS and type(value) is str:
        value = os.path.expanduser(os.path.expandvars(value))           # ~ and $HOME
        expect(value == value.strip() and value.isprintable(), (
            f"{name} = {value!r}: it begins or ends with a space, or has a line feed, or a letter "
            "that this locale does not know"))
        is_path = name not in ('out_dir', 'out') or not re.search('[$"\']|://', value)
        expect(is_path, f"{name} = {value!r}: it has a quote, a variable of the shell that is not "
               "set, or is an address")
    if type(value) is str and '.py --' not in value:            # a recipe may have words
        word = re.search(r'--\w+=.*', value)
        expect(not word, f"{name} = {value!r}: it holds another word, {word and word[0]}")
    expected = TYPES[kind]
    is_right = type(value) is kind and value not in ('True', 'False')
    if name in CHOICES:
        expected = ' or '.join(map(repr, CHOICES[name]))
        is_right = value in CHOICES[name]
    elif kind in (int, float):
        low = SMALLEST.get(name, 0) if default >= 0 else -MOST
        high = LARGEST.get(name, MOST)
        expected += f' from {low:g} to {high:g}' if high < MOST else f', {low:g} or more'
        is_right = is_right and low <= value <= high
    hint = '. (float(x) makes one of a number of numpy)' if hasattr(value, 'item') else ''
    expect(is_right, f"{name} = {value!r:.80}: expected {expected}{hint}")
    return value
