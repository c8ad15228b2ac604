"""Overrides in the exec style of nanoGPT, checked the same from files and flags.

    python train_grpo.py config/grpo_config.py --group_size=32 --out_dir=out-wide

Config files (Python, executed) and --key=value flags apply in the order given. A knob is a
lower-case module-level int, float, bool, str or dict of the script; nothing else can be set. A
file may also define functions (rewards), imports, and helpers named _like_this or LIKE_THIS.
"""
import ast
import difflib
import os
import re
import shlex
import signal
import subprocess
import sys
import types

KNOB_TYPES = (bool, int, float, str, dict)


def fail(message):
    """Ends the process with exit code 1 and one line on stderr."""
    sys.exit(f"error: {message}")


def knobs(names):
    """The knobs in a namespace, in the order in which the script wrote them."""
    return {key: value for key, value in names.items()
            if re.fullmatch(r'[a-z][a-z0-9_]*', key) and type(value) in KNOB_TYPES}


def checked(key, value, defaults, where):
    """The value, if it fits knob `key`: same type, or an int for a float. Raises SystemExit."""
    if key not in defaults:
        near = difflib.get_close_matches(key, defaults, 1, cutoff=0)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        fail(f"{where}: unknown key '{key}'{hint} (--help lists them all)")
    want, got = type(defaults[key]), type(value)
    if want is float and got is int:
        return float(value)
    if want is not got:
        fail(f"{where}: {key} = {value!r} is of type {got.__name__}, expected {want.__name__} "
             f"such as {defaults[key]!r}")
    return value


def run_file(path, names, defaults):
    """Executes a config file; returns the knobs that it set and puts its helpers into names."""
    if not os.path.isfile(path):
        near = sorted(f"config/{f}" for f in os.listdir(os.path.dirname(__file__))
                      if f.endswith('.py') and f != 'configurator.py')
        fail(f"no config file {path}; there are {', '.join(near)}")
    scope = {**knobs(names), '__name__': 'config', '__file__': path}
    before = dict(scope)
    try:
        with open(path, encoding='utf-8') as f:
            exec(compile(f.read(), path, 'exec'), scope)
    except SyntaxError as e:
        fail(f"{path}, line {e.lineno}: {e.msg}")
    except Exception as e:
        fail(f"{path}: {type(e).__name__}: {e}")
    found = {}
    for key, value in scope.items():
        if key.startswith('__') or (key in before and value is before[key]):
            continue
        if isinstance(value, (types.FunctionType, types.ModuleType, type)) or callable(value):
            if key in defaults:
                fail(f"{path}: {key} is a knob, and cannot be a function")
            names.setdefault('_functions', {})[key] = value
        elif re.fullmatch(r'[a-z][a-z0-9_]*', key):
            found[key] = checked(key, value, defaults, path)
    return found


def on_stop(number, frame):
    """Ctrl-C and SIGTERM end a script, and what it runs, with one line on how to go on."""
    os.write(1, f"\nstopped; again with: python {shlex.join(sys.argv)}\n".encode())
    sys.exit(128 + number)


def configure(names, argv=None, quiet=False):
    """Applies files and flags to a script's globals(); returns all knobs as a dict.

    Raises SystemExit (one line) for an unknown key, a wrong type, a missing or broken file.
    """
    defaults = knobs(names)
    if argv is None:
        signal.signal(signal.SIGINT, on_stop)
        signal.signal(signal.SIGTERM, on_stop)
    for arg in sys.argv[1:] if argv is None else argv:
        key, equals, text = arg.removeprefix('--').partition('=')
        if arg in ('--help', '-h'):
            print_help(names, defaults)
        elif not arg.startswith('--'):
            names.update(run_file(arg, names, defaults))
        elif not equals:
            if key not in defaults:
                checked(key, None, defaults, arg)
            fail(f"{arg}: expected --{key}=VALUE, such as --{key}={defaults[key]!r}")
        elif type(defaults.get(key)) is str:
            names[key] = text
        else:
            try:
                value = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                value = text
            names[key] = checked(key, value, defaults, arg)
    config = {key: names[key] for key in defaults}
    changed = {k: v for k, v in config.items() if v != defaults[k]}
    if changed and not quiet and os.environ.get('RANK', '0') == '0':
        print("overrides: " + ', '.join(f"{k}={v!r}" for k, v in changed.items()))
    return config


def check(rules, config):
    """Ends with one line if an expression of rules (text -> why) is not true of the config."""
    for rule, why in rules.items():
        if not eval(rule, {}, config):
            found = ', '.join(f"{k} = {v!r}" for k, v in config.items() if re.search(rf'\b{k}\b', rule))
            fail(f"{found}: expected {rule}{why and ' (' + why + ')'}")


def run(command):
    """Runs one of our scripts; ends with its exit code if it fails."""
    print('$', *command, flush=True)
    env = {key: value for key, value in os.environ.items() if 'RANK' not in key}
    code = subprocess.run([sys.executable, *command[1:]], env={**env, 'WORLD_SIZE': '1'}).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)


def print_help(names, defaults):
    """Prints the script's docstring and every knob with its default and its gloss; exits 0."""
    print(names['__doc__'].strip(), '\n\nknobs (--key=value, or in a config file):')
    with open(names['__file__'], encoding='utf-8') as f:
        source = f.read()
    for key, value in defaults.items():
        gloss = re.search(rf'^{key} = .*?# (.*)', source, re.M)
        print(f"  {key:28} {value!r:24} {gloss.group(1) if gloss else ''}")
    sys.exit(0)
