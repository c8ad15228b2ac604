"""The device, its precision, seeds, and ranks: processes that share the work of a step."""
import atexit
import ctypes
import datetime
import os
import sys
import zlib

import torch
import torch.distributed as dist

RANK = int(os.environ.get('RANK', 0))           # torchrun sets these
N_RANKS = int(os.environ.get('WORLD_SIZE', 1))


def init_device(device, dtype):
    """Set torch up for the knobs device and dtype, and for several ranks. Return the device."""
    has_gpu = {'cuda': torch.cuda.is_available(), 'mps': torch.backends.mps.is_available()}
    assert has_gpu.get(device, True), f"device = {device}: there is no such GPU"
    assert N_RANKS == 1 or device != 'mps', "a run on an Apple GPU has one rank"
    if device == 'auto':                        # networks as small as ours make an Apple GPU wait
        device = 'cuda' if has_gpu['cuda'] else 'cpu'
    torch.set_default_dtype(torch.float64 if dtype == 'float64' else torch.float32)
    if device == 'cuda':                        # torchrun gives each rank a GPU
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision('high')      # TF32, also if dtype is 'float32'
        torch.backends.cuda.enable_cudnn_sdp(False)     # cuDNN plans each new shape
    if N_RANKS > 1:
        # A rank can wait for hours: for the first rank, which makes networks, or for slow rewards.
        backend = 'gloo' if device == 'cpu' else 'cpu:gloo,cuda:nccl'    # scores are on the CPU
        dist.init_process_group(backend, timeout=datetime.timedelta(days=7))
        atexit.register(dist.destroy_process_group)
    return torch.device(device)


def set_precision(network, dtype):
    """Set the precision of matrix products, the knob dtype. 'auto' is bfloat16 on a CPU that has
    it. On a GPU it is float32, as TF32: in bfloat16 small networks only add casts, and no size that
    was measured was faster (docs/gpu.md)."""
    device_type = network.device.type
    is_faster = device_type == 'cpu' and torch.cpu._is_avx512_bf16_supported()
    if device_type == 'cpu' and network.head.in_features < 256:
        keep_memory()
        torch.set_num_threads(min(2, torch.get_num_threads()))          # more would wait
    # Under autocast logits and losses stay float32.
    torch.set_autocast_enabled(device_type, dtype == 'bfloat16' or dtype == 'auto' and is_faster)
    torch.set_autocast_dtype(device_type, torch.bfloat16)
    torch.set_autocast_cache_enabled(False)     # casts would outlive the next update of weights


def keep_memory():
    """Let freed memory stay with the process. glibc gives large pieces back to the system, and to
    get them again takes a fifth of a collect(). To call the C library by numbers is as ugly as it
    looks, but Python has no other way, and 431 ms become 342."""
    if sys.platform == 'linux':
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)                     # M_MMAP_MAX
        libc.mallopt(-1, 2 ** 31 - 1)           # M_TRIM_THRESHOLD


def set_seed(*numbers):
    """Let random numbers depend on these numbers alone."""
    torch.manual_seed(zlib.crc32(repr(numbers).encode()))


# ---- over ranks ----------------------------------------------------------------------------------
def wait_for_ranks():
    if N_RANKS > 1:
        dist.barrier()


def sum_over_ranks(x):
    """Return the sum over ranks of a number, or of a tensor, which is changed in place."""
    if N_RANKS > 1:
        x = torch.as_tensor(x)
        dist.all_reduce(x)
    return x


def sum_gradients(network):
    """Replace each gradient by its sum over ranks."""
    for p in network.parameters():
        if p.grad is not None:                  # a network can have weights that nothing uses
            sum_over_ranks(p.grad)


def std_over_ranks(x):
    """Return the std of a tensor over ranks, whose tensors have one size."""
    n = N_RANKS * x.numel()
    mean = sum_over_ranks(x.sum()) / n
    return (float(sum_over_ranks((x - mean).square().sum())) / (n - 1)) ** 0.5
