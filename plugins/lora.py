"""Teach adapters instead of the network: LoRA (arXiv:2106.09685). A network of plugins/hf.py keeps
its weights, and to the output of each linear layer for x an adapter adds

    lora_alpha / lora_rank * B (A x)

At first B is 0, so the policy begins as the network. Only A and B learn, and they have a few
percent of the weights, so gradients and moments of the optimizer take little memory. Adapters want
about ten times the learning rate:

    python train_grpo.py config/grpo_problems.py plugins/lora.py --learning_rate=2e-4

If the reference is the generator, no second network is needed: it is the policy without adapters.
A checkpoint has the adapters only; `python -m extras.export` adds them to the weights.

This file is executed in the globals of train_grpo.py. Its open_networks() and Pretrained replace
the ones there; `inner` is the old function."""
import copy
from types import SimpleNamespace

import peft

from plumbing.process import expect

include('plugins/hf.py')

lora_rank = 16              # rows of A, columns of B
lora_alpha = 32             # what adapters give is multiplied by lora_alpha / lora_rank


def open_networks(paths, *more, inner=open_networks):
    """Give the policy adapters. If the reference is the generator, let it be the policy without
    adapters."""
    path = paths['policy']
    is_start = paths['reference'] == path
    networks = inner(paths | {'reference': ''} if is_start else paths, *more)
    policy = networks.policy
    expect(not networks.files[path].endswith('.pt'), "the generator is a run: python -m "
           "extras.export makes a folder, with which LoRA can begin")
    devices.set_seed(seed)                      # all ranks begin with the same adapters
    policy.add_adapters(r=lora_rank, lora_alpha=lora_alpha)
    if is_start:
        def features(tokens):
            with policy.network.disable_adapter():
                return policy.features(tokens)

        networks.reference = SimpleNamespace(
            features=features, logits=policy.logits, head=policy.head, device=policy.device,
            order=copy.deepcopy(getattr(policy, 'order', None)))        # of plugins/order.py
    return networks


# The name in parentheses is still the class of plugins/hf.py. From here on Pretrained is this
# class, even in the functions of that file.
class Pretrained(Pretrained):
    """A network that can have adapters."""

    def __init__(self, folder, **lora):
        super().__init__(folder)
        if lora:
            self.add_adapters(**lora)

    def add_adapters(self, **lora):
        """Add adapters to all linear layers except the output layer."""
        self.args |= lora                       # a checkpoint keeps them, for __init__()
        self.network = peft.get_peft_model(
            self.network, peft.LoraConfig(target_modules='all-linear', **lora))

    def state_dict(self):
        """Return the weights that learn. The others are in the folder."""
        return {name: p.data for name, p in self.named_parameters() if p.requires_grad}

    def load_state_dict(self, state, strict=True):
        return super().load_state_dict(super().state_dict() | state, strict)
