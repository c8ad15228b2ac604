"""Overrides in the exec style of nanoGPT, checked the same from files and flags.

    python train_grpo.py config/grpo_config.py --group_size=32 --out_dir=out-wide

Files (Python, executed) and flags apply in the order given. Lower-case numbers, bools, strings and
dicts of the script are knobs. A file may also define functions, and helpers _like_this or LIKE."""
import ast
import atexit
import difflib
import os
import re
import runpy
import shlex
import signal
import sys

def fail(message):
    """Ends the process with exit code 1 and one line on stderr."""
    sys.exit(f"error: {message}")

def knobs(names):
    """The knobs in a namespace, in the order in which the script wrote them."""
    return {key: value for key, value in names.items() if re.fullmatch('[a-z][a-z0-9_]*', key)
            and type(value) in (bool, int, float, str, dict)}

def on_stop(number, frame):
    """Ctrl-C and SIGTERM end a script, and what it runs, with one line on how to go on."""
    atexit.register(print, f"\nstopped; again with: python {shlex.join(sys.argv)}", flush=True)
    sys.exit(128 + number)

def defined(arg, names, defaults):
    """What a flag, or a config file, which sees the knobs so far, defines: names and values."""
    key, equals, value = arg.removeprefix('--').partition('=')
    if key in defaults and not equals:
        fail(f"{arg}: expected --{key}=VALUE, such as --{key}={defaults[key]!r}")
    try:
        if not arg.startswith('--'):
            found = runpy.run_path(arg, knobs(names))
            return {k: v for k, v in found.items() if callable(v) or k[0].islower()}
        return {key: value if type(defaults.get(key)) is str else ast.literal_eval(value)}
    except Exception as e:          # a SyntaxError tells its line
        if arg.startswith('--'):
            return {key: value}     # no literal: its type is checked as that of a str
        there = [f'config/{file}' for file in os.listdir(os.path.dirname(__file__))]
        near = ', '.join(difflib.get_close_matches(arg, there, 9, cutoff=0))
        fail(f"{arg}: {type(e).__name__}: {e}" if os.path.isfile(arg) else
             f"no config file {arg}; there are, among others, {near}")

def configure(names, argv=None, quiet=False):
    """Applies files and flags to a script's globals(); returns all knobs as a dict. Ends with one
    line for an unknown key, a wrong type, a missing or broken file."""
    defaults, functions = knobs(names), names.setdefault('_functions', {})
    for number in (signal.SIGINT, signal.SIGTERM) if argv is None else ():
        signal.signal(number, on_stop)
    for arg in sys.argv[1:] if argv is None else argv:
        if arg in ('--help', '-h'):
            print(names['__doc__'].strip(), '\n\nknobs (--key=value, or in a config file):')
            files = os.path.join(os.path.dirname(__file__), '..', 'model.py'), names['__file__']
            text = ''.join(open(file).read() for file in files)     # judge.py has model.py's knobs
            glosses = dict(re.findall(r'^(\w+) = .*?# (.*)', text, re.M))
            for key, value in defaults.items():
                print(f"  {key:28} {value!r:24} {glosses.get(key, '')}")
            sys.exit(0)
        for key, value in defined(arg, names, defaults).items():
            want, got = type(defaults.get(key)), type(value)
            if key not in defaults and (callable(value) or got is type(sys)):   # imports: no knobs
                functions[key] = value
            elif key not in defaults:
                near = difflib.get_close_matches(key, defaults, 1, cutoff=0)[0]
                fail(f"{arg}: unknown key '{key}'; did you mean '{near}'? (--help lists them all)")
            elif got is not want and (want, got) != (float, int):
                fail(f"{arg}: {key} = {value!r} is of type {got.__name__}, expected "
                     f"{want.__name__} such as {defaults[key]!r}")
            else:
                names[key] = want(value)
    changed = [f"{key}={names[key]!r}" for key in defaults if names[key] != defaults[key]]
    if changed and not quiet and os.environ.get('RANK', '0') == '0':
        print("overrides:", ', '.join(changed))
    return {key: names[key] for key in defaults}
