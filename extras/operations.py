"""Count what a training step asks of torch: operations, and how often a GPU would be waited for.

    python -m extras.operations --dtype=float32
    python -m extras.operations config/grpo_guess.py

On a GPU a small network's step takes as long as the CPU needs to hand over its operations. Views,
which only look at memory in another way, are not counted. A wait is a number, or a size, that the
CPU must know before it can go on. The calls are the same on a CPU, but for attention(), which is
one operation on a GPU, and so here."""
import collections
import sys

import torch
import torch._dynamo        # optimizers import it, under a mode that it does not know
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import model
import train_grpo as grpo

FREE = {'_unsafe_view', 'empty', 'empty_like', 'new_empty', '_record_function_enter_new',
        '_record_function_exit'}
WAITS = {'_local_scalar_dense', 'nonzero', '_unique2', 'equal', 'masked_select'}


class Count(TorchDispatchMode):
    """Count the operations inside of `with`: those of torch, and the waits among them."""

    def __init__(self):
        super().__init__()
        self.names = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        is_view = any(value.alias_info and not value.alias_info.is_write
                      for value in function._schema.returns)    # it shares memory
        if not is_view and name not in FREE:
            self.names[name] += 1
        return function(*args, **(kwargs or {}))


if __name__ == '__main__':
    model.attention = lambda q, k, v, mask: F.scaled_dot_product_attention(
        q, k, v, mask.to(q.dtype))
    _, data = grpo.read_words(sys.argv[1:])
    networks, task = grpo.open_task(data)
    optimizers = grpo.make_optimizers(networks.policy, grpo.optimizer)
    for step in range(2):                       # the first one makes moments, too
        with Count() as acting:
            rollouts, _ = grpo.collect(networks, task, step)
        with Count() as learning:
            grpo.learn(networks, optimizers, rollouts, grpo.learning_rate)
    for name, count in {'act and score': acting, 'learn': learning}.items():
        waits = sum(n for op, n in count.names.items() if op in WAITS)
        print(f"{name:13} {count.names.total():5} operations, {waits:3} waits; most often: "
              + ', '.join(f'{op} {n}' for op, n in count.names.most_common(8)))
