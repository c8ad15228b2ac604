"""What a first reader may skip. It is imported before torch."""
import os

from plumbing import process  # noqa: F401  how a script fails, also while torch is imported

# Threads of torch spin while they wait. Let them sleep soon; otherwise a second busy process on the
# machine makes a run twelve times as slow.
os.environ.setdefault('GOMP_SPINCOUNT', '3000')
