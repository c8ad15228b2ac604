"""Write the policy of a run as a folder for transformers, with its tokenizer. The run must have
begun with such a folder (plugins/hf.py).

    python -m extras.export out-problems my-folder
"""
import sys
from pathlib import Path

import train_grpo as grpo
from configurator import configure

if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    run, folder = sys.argv[1:]
    configure(vars(grpo), ['plugins/hf.py'])
    assert not Path(folder).exists(), f"{folder} is there already: choose a new name"
    policy, tok, saved = grpo.load_network(f'{run}/ckpt.pt', 'cpu')
    assert 'folder' in saved['args'], f"{run} did not begin with a folder of transformers"
    policy.network.save_pretrained(folder)
    tok.theirs.save_pretrained(folder)
    print(f"wrote {folder}")
    if 'order.weight' in saved['model']:
        print("without the order that it learned, for which transformers has no place")
