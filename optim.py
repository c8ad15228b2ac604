"""Optimizers: Muon for the hidden matrices, AdamW for the rest, and the schedule of the learning
rate. Skip this file at first."""
import collections
import math

import torch
from torch import nn


class Muon(torch.optim.Optimizer):
    """Muon (K. Jordan, 2024): momentum whose matrix is made orthogonal, and scaled to the size of
    an update of AdamW. As torch.optim.Muon with match_rms_adamw, but matrices of one shape are
    one batch, in the precision of the network."""

    @torch.no_grad()
    def step(self):
        [group] = self.param_groups
        params = [p for p in group['params'] if p.grad is not None]     # others: no gradient
        if not params:
            return
        grads = [p.grad for p in params]
        for p in params:
            if p not in self.state:
                self.state[p]['moment'] = torch.zeros_like(p)
        moments = [self.state[p]['moment'] for p in params]
        torch._foreach_lerp_(moments, grads, 0.05)
        updates = torch._foreach_lerp(grads, moments, 0.95)             # Nesterov
        torch._foreach_mul_(params, 1 - group['lr'] * group['weight_decay'])
        batches = collections.defaultdict(list)
        for p, update in zip(params, updates):
            batches[tall(p).shape].append((tall(p), tall(update)))
        for shape, pairs in batches.items():
            matrices, updates = zip(*pairs)
            updates = orthogonalize(torch.stack(updates)).to(matrices[0].dtype)
            size = 0.2 * math.sqrt(shape[0]) * group['lr']
            torch._foreach_add_(matrices, list(updates), alpha=-size)


def tall(matrix):
    """Return a view with at least as many rows as columns."""
    return matrix if matrix.size(0) >= matrix.size(1) else matrix.T


def orthogonalize(x):
    """Return tall matrices (n, rows, columns) whose singular values have become about 1: five steps
    of Newton and Schulz, in the precision of the network."""
    if torch.is_autocast_enabled(x.device.type):
        x = x.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        a = x.mT @ x
        b = torch.baddbmm(a, a, a, beta=-4.775, alpha=2.0315)
        x = torch.baddbmm(x, x, b, beta=3.4445)
    return x


def make_optimizers(network, name, weight_decay=0.0):
    """Return optimizers of the weights that are not frozen. name: 'muon' for the hidden matrices
    and AdamW for the rest | 'adamw' for all."""
    hidden = set(network.blocks.parameters()) if name == 'muon' else ()
    weights = [p for p in network.parameters() if p.requires_grad]
    assert weights, "all weights are frozen: expected some that learn"
    matrices = [p for p in weights if p in hidden]
    others = [p for p in weights if p not in hidden]
    optimizers = [Muon(matrices, {'lr': 0.0, 'weight_decay': weight_decay})] if matrices else []
    if others:
        optimizers.append(torch.optim.AdamW(others, betas=(0.9, 0.95), fused=True,
                                            weight_decay=weight_decay))
    return optimizers


def get_lr(step, peak, floor, warmup, n_steps):
    """Return the learning rate of a step: linear warm-up, then a cosine from peak to floor."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(1, n_steps - warmup)
    floor = min(floor, peak)
    return floor + 0.5 * (1 + math.cos(math.pi * progress)) * (peak - floor)


def optimizer_step(network, optimizers, lr, grad_clip):
    """Take a step, and clear the gradients. Return the norm of the gradient before clipping."""
    grad_norm = nn.utils.clip_grad_norm_(network.parameters(), grad_clip or math.inf).item()
    assert math.isfinite(grad_norm), (
        "the gradient is not finite: is learning_rate, or a reward, too large?")
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group['lr'] = lr
        # Without a gradient momentum must not move the policy.
        if grad_norm > 0:
            optimizer.step()
        optimizer.zero_grad()
    return grad_norm
