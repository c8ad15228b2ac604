"""A CPU that follows CUDA's rules for what runs within `with pretend_gpu() as seen:`. Afterwards
seen.waits lists where a GPU would have been waited for, seen.mistakes where tensors of two devices
met. A tensor on 'cuda' is a GPU below, which holds a CPU tensor."""
import contextlib
import traceback
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device('cuda:0')
# What must know numbers that the GPU has computed, to make a number or a shape.
READS = ('_local_scalar_dense', 'equal', 'nonzero', 'masked_select', 'unique_dim', '_unique2')
INDEXING = ('index', 'index_put', 'index_put_', '_index_put_impl_')


class GPU(torch.Tensor):
    """A tensor on the pretended device; inner: a CPU tensor with its values."""
    __torch_function__ = torch._C._disabled_torch_function_impl
    __torch_dispatch__ = None                   # only Rules know how to compute with it
    device = property(lambda self: CUDA)

    @staticmethod
    def __new__(cls, inner):
        with torch.inference_mode(inner.is_inference()):
            self = torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
                dtype=inner.dtype)              # on the CPU for torch's C++, so autograd works
        self.inner = inner
        return self

    def to(self, *where, **how):
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*where, **how)
        if device in (None, CUDA):
            return super().to(dtype or self.dtype)
        return torch.ops.aten._to_copy(self, device=device, non_blocking=non_blocking)

    def cpu(self):
        return self.to('cpu')

    def tolist(self):
        return self.cpu().tolist()


def is_gpu(x):
    return isinstance(x, GPU)


class Rules(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.waits = []
        self.mistakes = []

    def note(self, problems, what):
        calls = [call for call in traceback.extract_stack()
                 if 'torch/' not in call.filename and call.filename != __file__]
        problems.append(f'{calls[-1].name}:{calls[-1].lineno} {what}')

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        how = kwargs or {}
        name = function.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, how)) if isinstance(x, torch.Tensor)]
        on_cpu = [x for x in tensors if not is_gpu(x)]
        has_gpu = len(on_cpu) < len(tensors)
        gives_gpu = has_gpu
        # A backward pass asks new_zeros() for the device that torch's C++ sees.
        if how.get('device') and not (has_gpu and 'new_' in name):
            gives_gpu = how['device'].type == 'cuda'
        if name == '_to_copy' and gives_gpu != has_gpu:
            if not how.get('non_blocking'):
                self.note(self.waits, 'copies to another device')
            elif has_gpu:
                self.note(self.mistakes, 'reads what need not be there yet')
        elif has_gpu and any(self.is_refused(function, name, args, x) for x in on_cpu):
            self.note(self.mistakes, f'{function} mixes devices')
        elif has_gpu and self.must_wait(name, args, on_cpu):
            self.note(self.waits, function)

        if 'device' in how:
            how = how | {'device': torch.device('cpu')}
        inner_args, how = tree_map(lambda x: x.inner if is_gpu(x) else x, (args, how))
        result = function(*inner_args, **how)
        if name.endswith('_'):                  # in place
            return args[0]
        return tree_map(lambda x: GPU(x) if isinstance(x, torch.Tensor) else x,
                        result) if gives_gpu else result

    def is_refused(self, function, name, args, x):
        """Would CUDA refuse x, which is on the CPU?"""
        if name in INDEXING:                    # indices may be there, single values too
            return x is args[0] or any(x is value and x.ndim > 0 for value in args[2:])
        takes_single = torch.Tag.pointwise in function.tags or name == 'fill_'
        return x.ndim > 0 or x is args[0] or not takes_single

    def must_wait(self, name, args, on_cpu):
        if name in INDEXING:
            return on_cpu or any(i is not None and i.dtype == torch.bool for i in args[1])
        return name in READS


@contextlib.contextmanager
def pretend_gpu():
    plain = torch.as_tensor                     # it fills memory without a call that Rules see

    def as_tensor(values, device='cpu', **how):
        return values if is_gpu(values) else plain(values, **how).to(device)

    with mock.patch('torch.cuda._lazy_init'), mock.patch('torch.as_tensor', as_tensor):
        with Rules() as seen:
            yield seen


def move(model):
    """Puts the weights and buffers of a model on the pretended device."""
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            module._parameters[name] = GPU(p.detach()).requires_grad_(p.requires_grad)
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = GPU(buffer)
    return model
