"""Write the policy of a run as a folder for transformers, with its tokenizer. The run must have
begun with a network of transformers (plugins/hf.py). Adapters of plugins/lora.py are added to the
weights.

    python -m extras.export out-problems my-folder
"""
import sys
from pathlib import Path

sys.path.insert(0, '.')         # for `python extras/export.py`

import train_grpo as grpo
from plumbing.configurator import configure
from plumbing.networks import load_checkpoint
from plumbing.process import expect

if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    run, folder = sys.argv[1:]
    expect(not Path(folder).exists(), f"{folder} is there already: choose a new name")
    expect(Path(run, 'ckpt.pt').is_file(), f"{run} is no run that has saved itself")
    args = load_checkpoint(f'{run}/ckpt.pt')['args']
    expect('vocab_size' not in args, f"{run} is a run of the GPT of model.py, for which "
           "transformers has no class: sample.py shows it")
    has_adapters = 'lora_alpha' in args
    configure(vars(grpo), ['plugins/lora.py' if has_adapters else 'plugins/hf.py'])
    policy, saved = grpo.load_network(f'{run}/ckpt.pt', 'cpu')
    network = policy.network.merge_and_unload() if has_adapters else policy.network
    network.save_pretrained(folder)
    policy.tok.theirs.save_pretrained(folder)
    print(f"wrote {folder}")
    if 'order.weight' in saved['model']:
        print("without the order that it learned, for which transformers has no place")
