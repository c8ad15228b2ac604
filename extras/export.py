"""Write the policy of a run as a folder that transformers can open. The run must have started from
such a folder.

    python -m extras.export out-smollm2 my-folder"""
import os
import sys

from common import fail
from pretrain import load_network

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    run, folder = sys.argv[1:]
    if os.path.exists(folder):
        fail(f"{folder} is there already; choose a new name")
    network, _ = load_network(run)
    if not hasattr(network, 'save_pretrained'):
        fail(f"{run} did not start from a folder of transformers")
    network.save_pretrained(folder)
    print(f"wrote {folder}")
