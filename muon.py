"""Muon (K. Jordan, 2024): each update of a matrix is orthogonalized, and as large as those of AdamW
are."""
import collections
import math

import torch


class Muon(torch.optim.Optimizer):
    """As torch.optim.Muon with match_rms_adamw, which takes the matrices one by one. This one takes
    all of a shape at once, in a quarter of the operations."""

    def __init__(self, matrices, weight_decay):
        super().__init__(matrices, {'lr': 0.0, 'weight_decay': weight_decay})

    @torch.no_grad()
    def step(self):
        group, = self.param_groups
        by_shape = collections.defaultdict(list)
        for p in group['params']:
            by_shape[tuple(sorted(p.shape))].append(p)
        for shape, matrices in by_shape.items():
            grads = torch.stack([wide(p.grad) for p in matrices])           # (matrices, *shape)
            state = self.state[matrices[0]]
            if not state:
                state['moments'] = torch.zeros_like(grads)
            moments = state['moments'].lerp_(grads, 0.05)
            updates = orthogonalize(grads.lerp(moments, 0.95)).to(grads.dtype)
            if group['weight_decay'] > 0:
                torch._foreach_mul_(matrices, 1 - group['lr'] * group['weight_decay'])
            torch._foreach_add_([wide(p) for p in matrices], updates.unbind(),
                                alpha=-group['lr'] * 0.2 * math.sqrt(max(shape)))


def wide(matrix):
    """Return a view that has at least as many columns as rows."""
    return matrix if matrix.size(0) <= matrix.size(1) else matrix.T


def orthogonalize(x):
    """Return wide matrices (n, rows, columns) whose singular values have become about 1: five steps
    of Newton and Schulz, in bfloat16."""
    x = x.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x
