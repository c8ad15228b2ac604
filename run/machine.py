"""The machine: ranks, the device, threads; numbers that leave the device, and the console."""
import atexit
import contextlib
import ctypes
import datetime
import math
import os

import torch
import torch.distributed as dist

from run.command import reading

# ---- ranks: torchrun says in the environment who we are ------------------------------------------


def rank():
    return int(os.environ.get('RANK') or 0)


def n_ranks():
    return int(os.environ.get('WORLD_SIZE') or 1)


def print0(*words):
    """Print on rank 0 only."""
    if rank() == 0:
        print(*words, flush=True)


def all_reduce(tensor, op=dist.ReduceOp.SUM):
    """Sum (or another op) over all ranks, in place; return the tensor. One rank: do nothing."""
    if n_ranks() > 1:
        dist.all_reduce(tensor, op)
    return tensor


# ---- device --------------------------------------------------------------------------------------


def init_device(device, dtype):
    """Set torch up for the knobs device and dtype, for the whole process. Return the torch.device,
    and the dtype without 'auto'."""
    # torch.accelerator is the GPU that this build of torch was made for, if the machine has it.
    here = str(torch.accelerator.current_accelerator(check_available=True) or 'cpu')
    if device == 'auto':
        device = here
    assert device in ('cpu', here), f"device = '{device}': this machine has '{here}'"
    if device == 'cuda':                        # torchrun gives each rank a GPU
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
    device = torch.device(device)
    if dtype == 'auto':                         # bfloat16 where the device has it
        has_bfloat16 = False
        if device.type == 'cuda':
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        elif device.type == 'cpu':
            has_bfloat16 = torch.cpu._is_avx512_bf16_supported()
        dtype = 'bfloat16' if has_bfloat16 else 'float32'
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    # If dtype is bfloat16, matrix products are cast to it, and softmax and sums stay float32. The
    # casts of weights are not kept, because they would outlive the next update of the weights.
    torch.set_autocast_enabled(device.type, dtype == 'bfloat16')
    torch.set_autocast_dtype(device.type, torch.bfloat16)
    torch.set_autocast_cache_enabled(False)
    precision = 'highest'
    if device.type == 'cuda':
        precision = 'high'                      # TF32
        # cuDNN plans its attention anew for each shape, 11 ms a time on an H200, and here nearly
        # every call has its own shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
    elif dtype == 'bfloat16':
        # Products of float32 (the output layer) may have bfloat16 factors, and still float32 sums.
        # CPUs without AMX keep float32 factors, but on an AMD they leave MKL for faster kernels.
        precision = 'medium'
    torch.set_float32_matmul_precision(precision)
    keep_freed_memory()
    if n_ranks() > 1:                           # 9 hours: ranks wait while rank 0 makes networks
        with reading("WORLD_SIZE is set, but what else torchrun sets"):
            dist.init_process_group('nccl' if device.type == 'cuda' else 'gloo',
                                    timeout=datetime.timedelta(hours=9))
        atexit.register(dist.destroy_process_group)
    return device, dtype


def cast_once(device):
    """Return a context in which autocast casts each weight once. The casts are forgotten at its
    end."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=enabled, cache_enabled=True)


def keep_freed_memory():
    """Stop glibc from returning freed buffers to the system. Page faults otherwise cost 10 to 16 %
    of a step, measured on two cores of an AMD EPYC."""
    with contextlib.suppress(AttributeError, TypeError):    # another C library
        mallopt = ctypes.CDLL(None).mallopt
        # M_TRIM_THRESHOLD: return memory at the end of the heap only if it is more than this
        mallopt(-1, 2 ** 30)
        # M_MMAP_THRESHOLD: take smaller buffers from the heap, where they can be used again
        mallopt(-3, 2 ** 26)


def use_threads(network):
    """Use one thread for a network of less than 256 channels, unless OMP_NUM_THREADS is set.

    Threads wait for each other at every small product. If another process is busy on the machine,
    two threads take two to five times as long as one."""
    # (a pretrained network has no n_embd: it counts as large)
    if network.args.get('n_embd', 256) < 256 and 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)


# ---- numbers -------------------------------------------------------------------------------------


def as_numbers(values):
    """Return values {name: number or tensor} as {name: number}; all of them must be finite."""
    # float() waits for the device, so this is called once a step.
    numbers = {name: float(value) for name, value in values.items()}
    bad = [name for name, value in numbers.items() if not math.isfinite(value)]
    if bad:                                     # which Ending does not save
        raise FloatingPointError(f"{bad} are not finite, so no checkpoint was overwritten; is "
                                 "learning_rate too large, or a reward, or a weight of the loss?")
    return numbers


def print_line(label, numbers):
    """Print pairs (name, number) on one line."""
    print0(label.ljust(9), *[f'| {name} {number:.3f}' for name, number in numbers])
