"""Overrides in the exec style of nanoGPT, checked the same from files and flags.

    python train_grpo.py config/grpo_config.py --group_size=32 --out_dir=out-wide

Files and flags apply in the order given; files may add functions, helpers _like_this or LIKE."""
import ast, atexit, contextlib, difflib, glob, os, re, runpy, shlex, signal, sys
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

def fail(message):
    """Ends the process with exit code 1 and one line on stderr."""
    sys.exit(f"error: {message}")

def knobs(names):
    """The knobs in a namespace (lower-case numbers, bools, strings, dicts) in the order written."""
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
    if arg.startswith('--'):
        with contextlib.suppress(Exception):    # no literal: its type is checked as that of a str
            value = value if type(defaults.get(key)) is str else ast.literal_eval(value)
        return {key: value}
    try:
        found = runpy.run_path(arg, knobs(names))
        return {k: v for k, v in found.items() if callable(v) or k[0].islower()}
    except Exception as e:                      # a SyntaxError tells its line
        near = difflib.get_close_matches(arg, glob.glob('config/*', root_dir=HOME), 9, cutoff=0)
        fail(f"{arg}: {type(e).__name__}: {e}" if os.path.isfile(arg) else
             f"no config file {arg}; there are, among others, {', '.join(near)}")

def configure(names, argv=None, quiet=False):
    """Applies files and flags to a script's globals(); returns all knobs. fail()s if any is bad."""
    defaults, functions = knobs(names), names.setdefault('_functions', {})
    for number in (signal.SIGINT, signal.SIGTERM) if argv is None else ():
        signal.signal(number, on_stop)
    for arg in sys.argv[1:] if argv is None else argv:
        if arg in ('--help', '-h'):
            print(names['__doc__'].strip(), '\n\nknobs (--key=value, or in a config file):')
            text = ''.join(open(file).read() for file in (f'{HOME}/model.py', names['__file__']))
            glosses = dict(re.findall(r'^(\w+) = .*?# (.*)', text, re.M))   # judge.py: model.py's
            for key, value in defaults.items():
                print(f"  {key:28} {value!r:24} {glosses.get(key, '')}")
            sys.exit(0)
        for key, value in defined(arg, names, defaults).items():
            want, got = type(defaults.get(key, value)), type(value)
            if key not in defaults and not callable(value) and got is not type(sys):    # an import
                near = difflib.get_close_matches(key, defaults, 1, cutoff=0)[0]
                fail(f"{arg}: unknown key '{key}'; did you mean '{near}'? (--help lists them all)")
            if got is not want and (want, got) != (float, int):
                fail(f"{arg}: {key} = {value!r} is of type {got.__name__}, expected "
                     f"{want.__name__} such as {defaults[key]!r}")
            where = names if key in defaults else functions
            where[key] = float(value) if want is float else value
    changed = [f"{key}={names[key]!r}" for key in defaults if names[key] != defaults[key]]
    if changed and not quiet and os.environ.get('RANK', '0') == '0':
        print("overrides:", ', '.join(changed))
    return knobs(names)
