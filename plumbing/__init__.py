"""What a first reader may skip. It is imported before torch."""
import importlib.util
import os
import sys

for _name in sorted(os.listdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))):
    if _name.endswith('.py') and _name[:-3] in sys.stdlib_module_names:
        sys.exit(f'error: rename {_name}: Python has a module of this name, and would import yours')

for _name in 'numpy', 'torch', 'tqdm', 'filelock':
    if importlib.util.find_spec(_name) is None:
        sys.exit(f'error: there is no {_name}: pip install -r requirements.txt, or, if you have '
                 'done this, . .venv/bin/activate')

from plumbing import process  # noqa: E402, F401  how a script fails, also while torch is imported

# Threads of torch spin while they wait. Let them sleep soon; otherwise a second busy process on the
# machine makes a run twelve times as slow.
os.environ.setdefault('GOMP_SPINCOUNT', '3000')
