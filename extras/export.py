"""Write the policy of a run as a folder that transformers can open. The run must have started from
such a folder.

    python -m extras.export out-smollm2 my-folder"""
import os
import sys

from run.command import fail, show_error
from run.networks import load_network

sys.excepthook = show_error                     # what a folder lacks is one line

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    run, folder = sys.argv[1:]
    if os.path.exists(folder):
        fail(f"{folder} is there already; choose a new name")
    policy, tok = load_network(run)
    if 'folder' not in policy.args:
        fail(f"{run} did not start from a folder of transformers")
    # pretrained.py has put a Head in the place of the output layer
    network = policy.network
    network.set_output_embeddings(network.get_output_embeddings().linear)
    network.save_pretrained(folder)
    tok.tokenizer.save_pretrained(folder)
    print(f"wrote {folder}")
