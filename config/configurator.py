"""Overrides in the exec style of nanoGPT, checked the same from files and flags.

    python train_grpo.py config/grpo_config.py --group_size=32 --out_dir=out-wide

Config files (Python, executed) and --key=value flags apply in the order given. A knob is a
lower-case module-level int, float, bool, str or dict of the script; nothing else can be set. A
file may also define functions (rewards), imports, and helpers named _like_this or LIKE_THIS."""
import ast
import contextlib
import difflib
import os
import re
import shlex
import signal
import subprocess
import sys
import types

KNOB = re.compile('[a-z][a-z0-9_]*')

def fail(message):
    """Ends the process with exit code 1 and one line on stderr."""
    sys.exit(f"error: {message}")

def knobs(names):
    """The knobs in a namespace, in the order in which the script wrote them."""
    return {key: value for key, value in names.items()
            if KNOB.fullmatch(key) and type(value) in (bool, int, float, str, dict)}

def checked(key, value, defaults, where):
    """The value, if it fits knob `key`: same type, or an int for a float. Else fails."""
    if key not in defaults:
        near = difflib.get_close_matches(key, defaults, 1, cutoff=0)[0]
        fail(f"{where}: unknown key '{key}'; did you mean '{near}'? (--help lists them all)")
    want, got = type(defaults[key]), type(value)
    if want is not got and (want, got) != (float, int):
        fail(f"{where}: {key} = {value!r} is of type {got.__name__}, expected {want.__name__} "
             f"such as {defaults[key]!r}")
    return want(value)

def run_file(path, names, defaults):
    """Executes a config file; returns the knobs that it set and puts its functions into names."""
    if not os.path.isfile(path):
        there = {f'config/{f}' for f in os.listdir(os.path.dirname(__file__)) if f.endswith('.py')}
        near = difflib.get_close_matches(path, there - {'config/configurator.py'}, 9, cutoff=0)
        fail(f"no config file {path}; there are, among others, {', '.join(near)}")
    before = {**knobs(names), '__name__': 'config', '__file__': path}
    scope, found = dict(before), {}
    try:
        with open(path, encoding='utf-8') as f:
            exec(compile(f.read(), path, 'exec'), scope)
    except Exception as e:          # a SyntaxError tells its line
        fail(f"{path}: {type(e).__name__}: {e}")
    for key, value in scope.items():
        if key.startswith('__') or value is before.get(key, before):
            continue
        if callable(value) or isinstance(value, types.ModuleType):
            if key in defaults:
                fail(f"{path}: {key} is a knob, and cannot be a function")
            names.setdefault('_functions', {})[key] = value
        elif KNOB.fullmatch(key):
            found[key] = checked(key, value, defaults, path)
    return found

def on_stop(number, frame):
    """Ctrl-C and SIGTERM end a script, and what it runs, with one line on how to go on."""
    os.write(1, f"\nstopped; again with: python {shlex.join(sys.argv)}\n".encode())
    sys.exit(128 + number)

def configure(names, argv=None, quiet=False):
    """Applies files and flags to a script's globals(); returns all knobs as a dict. Ends with one
    line for an unknown key, a wrong type, a missing or broken file."""
    defaults = knobs(names)
    if argv is None:
        signal.signal(signal.SIGINT, on_stop)
        signal.signal(signal.SIGTERM, on_stop)
    for arg in sys.argv[1:] if argv is None else argv:
        key, equals, value = arg.removeprefix('--').partition('=')
        if arg in ('--help', '-h'):
            print_help(names, defaults)
        elif not arg.startswith('--'):
            names.update(run_file(arg, names, defaults))
        elif key in defaults and not equals:
            fail(f"{arg}: expected --{key}=VALUE, such as --{key}={defaults[key]!r}")
        else:
            with contextlib.suppress(ValueError, SyntaxError):      # then it stays a str
                value = value if type(defaults.get(key)) is str else ast.literal_eval(value)
            names[key] = checked(key, value, defaults, arg)
    config = {key: names[key] for key in defaults}
    changed = [f"{key}={value!r}" for key, value in config.items() if value != defaults[key]]
    if changed and not quiet and os.environ.get('RANK', '0') == '0':
        print("overrides:", ', '.join(changed))
    return config

def check(rules, config):
    """Ends with one line if an expression of rules (text -> why) is not true of the config."""
    for rule, why in rules.items():
        if not eval(rule, {}, config):
            found = (f"{k} = {v!r}" for k, v in config.items() if re.search(rf'\b{k}\b', rule))
            fail(f"{', '.join(found)}: expected {rule}{why and ' (' + why + ')'}")

def run(command):
    """Runs one of our scripts, as one process; ends with its exit code if it fails."""
    print('$', *command, flush=True)
    env = {key: value for key, value in os.environ.items() if 'RANK' not in key}
    code = subprocess.run([sys.executable, *command[1:]], env=env | {'WORLD_SIZE': '1'}).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)

def print_help(names, defaults):
    """Prints the script's docstring and every knob with its default and its gloss; exits 0."""
    print(names['__doc__'].strip(), '\n\nknobs (--key=value, or in a config file):')
    with open(names['__file__'], encoding='utf-8') as f:
        glosses = dict(re.findall(r'^(\w+) = .*?# (.*)', f.read(), re.M))
    for key, value in defaults.items():
        print(f"  {key:28} {value!r:24} {glosses.get(key, '')}")
    sys.exit(0)
