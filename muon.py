"""Muon (K. Jordan, 2024): each update of a matrix is orthogonalized, and as large as those of AdamW
are."""
import math

import torch


class Muon(torch.optim.Optimizer):
    """As torch.optim.Muon with match_rms_adamw, which takes the matrices one by one. This one takes
    all at once, in a tenth of the operations. All have C rows or columns; rows of zeros, which
    change nothing, make them equally long."""

    def __init__(self, matrices, weight_decay):
        super().__init__(matrices, {'lr': 0.0, 'weight_decay': weight_decay})

    @torch.no_grad()
    def step(self):
        group, = self.param_groups
        matrices = [tall(p) for p in group['params']]                       # (length, C) each
        lengths = [len(matrix) for matrix in matrices]
        zeros = matrices[0].new_zeros(max(lengths), matrices[0].size(1))
        rows = [(tall(p.grad), zeros[max(p.shape):]) for p in group['params']]
        grads = torch.cat(sum(rows, ())).unflatten(0, (len(rows), -1))      # (matrices, length, C)
        state = self.state[group['params'][0]]
        if not state:
            state['moments'] = torch.zeros_like(grads)
        moments = state['moments'].lerp_(grads, 0.05)
        updates = orthogonalize(grads.lerp(moments, 0.95)).to(grads.dtype)
        if group['weight_decay'] > 0:
            torch._foreach_mul_(matrices, 1 - group['lr'] * group['weight_decay'])
        for length in set(lengths):
            same = [i for i, other in enumerate(lengths) if other == length]
            torch._foreach_add_([matrices[i] for i in same], [updates[i, :length] for i in same],
                                alpha=-group['lr'] * 0.2 * math.sqrt(length))


def tall(matrix):
    """Return a view that has at least as many rows as columns."""
    return matrix if matrix.size(0) >= matrix.size(1) else matrix.T


def orthogonalize(x):
    """Return tall matrices (n, rows, columns) whose singular values have become about 1: five steps
    of Newton and Schulz, in bfloat16."""
    x = x.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        a = x.mT @ x
        b = torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, x, b, beta=3.4445)
    return x
