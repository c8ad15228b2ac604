"""The device, its precision, seeds, and ranks: processes that share the work of a step."""
import atexit
import ctypes
import datetime
import functools
import os
import sys
import zlib

import torch
import torch.distributed as dist

from plumbing.process import N_RANKS, RANK, expect


def init_device(device, dtype):
    """Set torch up for the knobs device and dtype, and for several ranks. Return the device."""
    if device == 'auto':                        # networks as small as ours make an Apple GPU wait
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    is_there = {'cuda': torch.cuda.is_available(), 'mps': torch.backends.mps.is_available()}
    expect(is_there.get(device, True), f"device = {device!r}: this machine has none, or this torch "
           "was built without it")
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    if device == 'cuda':                        # torchrun gives each rank a GPU
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision('high')      # TF32, also if dtype is 'float32'
        torch.backends.cuda.enable_cudnn_sdp(False)     # cuDNN plans each new shape
    if N_RANKS > 1:                             # scores are on the CPU, so both need a backend
        dist.init_process_group('gloo' if device == 'cpu' else 'cpu:gloo,cuda:nccl')
        atexit.register(dist.destroy_process_group)
    return torch.device(device)


def set_precision(network, dtype):
    """Let the trunk of a network multiply matrices in bfloat16, if the knob dtype says so. Weights,
    logits, losses and gradients of weights stay float32."""
    network.is_bfloat16 = dtype == 'bfloat16'
    if network.device.type == 'cpu':
        keep_memory()
        if network.head.in_features < 256:      # more threads would wait
            torch.set_num_threads(min(2, torch.get_num_threads()))


def keep_memory():
    """Let freed memory stay with the process. glibc gives large pieces back to the system, and to
    get them again takes a fifth of a collect(), and of the learn() of a language model, which needs
    4 to 14 % more memory then. (Python has no names for these numbers of the C library.)"""
    if sys.platform == 'linux':
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)                     # M_MMAP_MAX
        libc.mallopt(-1, 2 ** 31 - 1)           # M_TRIM_THRESHOLD


def set_seed(*numbers):
    """Let random numbers depend on these numbers alone."""
    torch.manual_seed(zlib.crc32(repr(numbers).encode()))


# ---- over ranks ----------------------------------------------------------------------------------
def from_first_rank(function):
    """Return what function() returns on the first rank, which alone calls it: machines may share no
    disk, so what the first rank reads, all get. If it fails, all end."""
    if N_RANKS == 1:
        return function()
    box, error = [None, None], None
    try:
        box[0] = function() if RANK == 0 else None
    except Exception as e:
        error, box[1] = e, repr(e)
    dist.broadcast_object_list(box, group=patient_group())
    if error:
        raise error
    expect(not box[1], f"the first rank has failed: {box[1]!s:.200}")
    return box[0]


@functools.cache
def patient_group():
    """Return the group of all ranks that may wait for days, because the first rank makes networks.
    (It is made once, at the beginning: later it would wait for a rank that has failed.)"""
    return dist.new_group(backend='gloo', timeout=datetime.timedelta(days=7))


def check_same(name, value):
    """Refuse what is not the same on all ranks: another machine may have other files."""
    numbers = [zlib.crc32(repr(value).encode())] * N_RANKS
    dist.all_gather_object(numbers, numbers[0])         # so that all ranks end
    expect(len({*numbers}) == 1, f"{name}: not all ranks have the same. All machines need the same "
           "files and the same words")


def share_of_this_rank(n):
    """Return which of n micro-steps this rank takes: all, or of 6 on two ranks 0 2 4 or 1 3 5."""
    return range(RANK, n, N_RANKS)


def sum_gradients(network):
    """Sum the gradients of a network over ranks."""
    for p in network.parameters():
        if p.grad is not None:                  # a network can have weights that nothing uses
            sum_over_ranks(p.grad)


def sum_over_ranks(x):
    """Return the sum over ranks of a number, or of a tensor, which is changed in place."""
    if N_RANKS > 1:
        x = torch.as_tensor(x)
        dist.all_reduce(x)
    return x


def std_over_ranks(x):
    """Return the std of a tensor over ranks, whose tensors have one size."""
    n = N_RANKS * x.numel()
    mean = sum_over_ranks(x.sum()) / n
    return (float(sum_over_ranks((x - mean).square().sum())) / (n - 1)) ** 0.5
