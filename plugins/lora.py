"""LoRA (arXiv:2106.09685): a network of plugins/hf.py keeps its weights, and learns adapters. An
adapter adds B A x * lora_alpha / lora_rank to what a linear layer makes of x. B is 0 at the start.
include() this file after plugins/hf.py.

    python train_grpo.py config/grpo_problems.py plugins/lora.py --learning_rate=2e-4

The reference is the policy without adapters, so there is no second network in memory. A checkpoint
has adapters only, and `python -m extras.export` adds them to the weights. Names that are not
imported here are those of train_grpo.py, and inner is the function that a function replaces."""
from pathlib import Path

try:
    import peft
except ImportError:
    sys.exit("plugins/lora.py needs peft: pip install peft")

assert 'Pretrained' in globals(), "include plugins/hf.py before plugins/lora.py"

lora_rank = 16              # rows of A, columns of B
lora_alpha = 32             # what adapters give is multiplied by lora_alpha / lora_rank
LOWEST['lora_rank'] = 1


def open_networks(paths, *more, inner=open_networks):
    """Give the policy adapters, and a reference that is the start none."""
    path = paths['policy']
    assert not Path(path).is_file() and not Path(path, 'ckpt.pt').exists(), (
        f"{path} is a run: expected a folder (python -m extras.export), or a name of the hub")
    is_start = paths['reference'] == path
    networks = inner(paths | {'reference': '' if is_start else paths['reference']}, *more)
    set_seed(seed)                              # all ranks begin with the same adapters
    networks.policy.add_adapters({'r': lora_rank, 'lora_alpha': lora_alpha})
    if is_start:
        networks.reference = WithoutAdapters(networks.policy)
    return networks


class Pretrained(Pretrained):
    """A network that can have adapters."""

    def __init__(self, folder, lora=None):
        super().__init__(folder)
        if lora:
            self.add_adapters(lora)

    def add_adapters(self, lora):
        """Add adapters to all linear layers but the last one."""
        self.args['lora'] = lora
        self.network = peft.get_peft_model(
            self.network, peft.LoraConfig(target_modules='all-linear', **lora))

    def state_dict(self, *args, **more):
        """Return what learns."""
        state = super().state_dict(*args, **more)
        return {name: state[name] for name, p in self.named_parameters() if p.requires_grad}

    def load_state_dict(self, state, strict=True):
        return super().load_state_dict(super().state_dict() | state, strict)


class WithoutAdapters:
    """A policy as it was at the start."""

    def __init__(self, policy):
        self.policy = policy
        self.logits = policy.logits

    def features(self, tokens):
        with self.policy.network.disable_adapter():
            return self.policy.features(tokens)
