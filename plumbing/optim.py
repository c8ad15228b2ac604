"""Optimizers: Muon for the hidden matrices, AdamW for the rest, and the schedule of the learning
rate."""
import math

import torch
from torch import nn

from plumbing.process import expect


class Muon(torch.optim.Optimizer):
    """Muon (K. Jordan, 2024): momentum whose matrix is made orthogonal, and scaled to the size of
    an update of AdamW. (torch.optim.Muon with match_rms_adamw is the same, but it computes in
    bfloat16 even where the processor has none, which takes ten times as long.)"""

    @torch.no_grad()
    def step(self):
        [group] = self.param_groups
        for p in group['params']:
            if p.grad is not None:
                moment = self.state[p].setdefault('moment', torch.zeros_like(p))
                moment.lerp_(p.grad, 0.05)      # moment = 0.95 moment + 0.05 grad
                update = orthogonalize(p.grad.lerp(moment, 0.95))               # Nesterov
                p.mul_(1 - group['lr'] * group['weight_decay'])
                p.sub_(update, alpha=group['lr'] * 0.2 * max(p.shape) ** 0.5)


def orthogonalize(matrix):
    """Return a matrix whose singular values have become about 1: five steps of Newton and Schulz.
    """
    x = matrix if matrix.size(0) >= matrix.size(1) else matrix.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        a = x.T @ x
        b = torch.addmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.addmm(x, x, b, beta=3.4445)
    return x if x.shape == matrix.shape else x.T


def make_optimizers(network, name, weight_decay=0.0):
    """Return optimizers of the weights. name: 'muon' for the hidden matrices
    and AdamW for the rest | 'adamw' for all."""
    # Frozen weights have no gradient, and both skip such weights.
    hidden = dict.fromkeys(network.blocks.parameters()) if name == 'muon' else {}
    others = [p for p in network.parameters() if p not in hidden]
    adamw = torch.optim.AdamW(others, betas=(0.9, 0.95), fused=True, weight_decay=weight_decay)
    muon = [Muon([*hidden], {'lr': 0.0, 'weight_decay': weight_decay})] if hidden else []
    return [*muon, adamw]


def get_lr(step, peak, floor, warmup, n_steps):
    """Return the learning rate of a step: linear warm-up, then a cosine from peak to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / (n_steps - warmup)
    floor = min(floor, peak)
    return floor + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - floor)


def optimizer_step(network, optimizers, lr, grad_clip):
    """Take a step. Return the norm of the gradient before clipping."""
    expect(isinstance(lr, int | float) and lr >= 0, f"get_lr() returned {lr!r:.80}: expected a "
           "number, 0 or more")
    grad_norm = nn.utils.clip_grad_norm_(network.parameters(), grad_clip or math.inf).item()
    expect(math.isfinite(grad_norm), "the gradient is not finite: is learning_rate, a reward, or "
           "an advantage too large? (The last checkpoint stays.)")
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group['lr'] = lr
        # Without a gradient momentum must not move the policy.
        if grad_norm > 0:
            optimizer.step()
    return grad_norm
