"""A CPU that follows CUDA's rules for what runs within `with PretendGPU() as seen:`. Afterwards
seen.waits lists where a GPU would have been waited for, seen.mistakes where tensors of two devices
met. A tensor on 'cuda' is a GPU below, which holds a CPU tensor."""
import traceback

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device('cuda:0')
# What must know numbers that the GPU has computed, to make a number, or a shape.
READS = ('_local_scalar_dense', 'equal', 'nonzero', 'masked_select', 'unique_dim', '_unique2')
INDEXING = ('index', 'index_put', 'index_put_', '_index_put_impl_')


class GPU(torch.Tensor):
    """A tensor on the pretended device; inner: a CPU tensor with its values."""
    __torch_function__ = torch._C._disabled_torch_function_impl
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
            return super().to(dtype) if dtype else self
        return torch.ops.aten._to_copy(self, dtype=dtype, device=device, non_blocking=non_blocking)

    def cpu(self):
        return self.to('cpu')

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise TypeError(f"{function} outside of PretendGPU()")


def is_gpu(x):
    return isinstance(x, GPU)


class PretendGPU(TorchDispatchMode):
    def __enter__(self):
        self.waits = []
        self.mistakes = []
        self.before = torch.cuda._lazy_init, torch.as_tensor
        torch.cuda._lazy_init = lambda: None
        torch.as_tensor = self.as_tensor        # it fills memory without any call that we see
        return super().__enter__()

    def __exit__(self, *error):
        torch.cuda._lazy_init, torch.as_tensor = self.before
        return super().__exit__(*error)

    def as_tensor(self, values, device='cpu', **how):
        return values if is_gpu(values) else self.before[1](values, **how).to(device)

    def note(self, problems, why):
        lines = [line for line in traceback.extract_stack()[:-2]
                 if 'torch/' not in line.filename and line.filename != __file__]
        problems.append(f'{lines[-1].name}:{lines[-1].lineno} {why}')

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = function.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_gpu = [x for x in tensors if is_gpu(x)]
        on_cpu = [x for x in tensors if not is_gpu(x)]
        goes_to_gpu = len(on_gpu) > 0
        is_asynchronous = kwargs.get('non_blocking', False)

        if kwargs.get('device') is not None:
            # new_zeros() in a backward pass is asked for the device that torch's C++ sees.
            goes_to_gpu = kwargs['device'].type == 'cuda' or 'new_' in name and goes_to_gpu
            kwargs['device'] = torch.device('cpu')
        if name == 'copy_':
            goes_to_gpu = is_gpu(args[0])
            is_asynchronous = args[2:3] == (True,)
        if name in ('_to_copy', 'copy_'):
            if goes_to_gpu and on_cpu and not is_asynchronous:
                self.note(self.waits, 'copies to the GPU')
            if on_gpu and not goes_to_gpu:
                self.note(self.mistakes if is_asynchronous else self.waits, 'copies from the GPU')
        elif on_gpu and on_cpu and any(self.is_mixed(function, name, args, x) for x in on_cpu):
            self.note(self.mistakes, f'{function} mixes devices')
        elif on_gpu and self.must_wait(name, args, on_cpu):
            self.note(self.waits, function)

        written = {id(x.inner): x for x in on_gpu}              # of what changes in place
        args, kwargs = tree_map(lambda x: x.inner if is_gpu(x) else x, (args, kwargs))

        def wrap(x):
            is_new = goes_to_gpu and isinstance(x, torch.Tensor)
            return written.get(id(x)) if id(x) in written else GPU(x) if is_new else x

        return tree_map(wrap, function(*args, **kwargs))

    def is_mixed(self, function, name, args, x):
        """Would CUDA refuse x, which is on the CPU?"""
        if name in INDEXING:                    # indices may be there, single values too
            return x is args[0] or x in args[2:] and x.ndim > 0
        return x.ndim > 0 or x is args[0] or (
            torch.Tag.pointwise not in function.tags and name != 'fill_')

    def must_wait(self, name, args, on_cpu):
        return name in READS or name in INDEXING and (
            len(on_cpu) > 0 or any(index is not None and index.dtype == torch.bool
                                   for index in args[1]))


def move(model):
    """Puts the weights and buffers of a model on the pretended device."""
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            module._parameters[name] = GPU(p.detach()).requires_grad_(p.requires_grad)
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = GPU(buffer)
    return model
