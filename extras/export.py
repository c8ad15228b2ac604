"""Write the policy of a run as a folder that transformers can open. The run must have started from
such a folder.

    python -m extras.export out-problems my-folder"""
import os

from extras.words import words_of
from run.command import fail
from pretrain import load_network

if __name__ == "__main__":
    run, folder = words_of(__doc__, 2)
    if os.path.exists(folder):
        fail(f"{folder} is there already; choose a new name")
    policy, tok = load_network(run)
    if 'folder' not in policy.args:
        fail(f"{run} did not start from a folder of transformers")
    policy.network.save_pretrained(folder)
    tok.tokenizer.save_pretrained(folder)
    print(f"wrote {folder}")
    if hasattr(policy, 'order'):
        print("without the order that it learned, for which transformers has no place")
