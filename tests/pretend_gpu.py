"""Runs a program written for 'cuda' on a CPU, under CUDA's rules.

A tensor on 'cuda' is a GPU below: a CPU tensor for torch's C++ (so autograd and optimizers work),
but its .device is cuda:0. Calls() sees every call of torch and takes 'cuda' out of its arguments;
run() sees every operation, notes where CUDA would raise (tensors of two devices), and where a GPU
would be waited for."""
import collections
import json
import os
import sys

import torch
import torch._dynamo                            # modes need it, and it wants an unpatched torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device('cuda:0'), torch.device('cpu')
LIBRARY = (os.path.dirname(torch.__file__), sys._getframe().f_code.co_filename, '<')
ALWAYS = {'_local_scalar_dense': 'a number read: item, int, bool, max(), format', 'equal': 'equal',
          'nonzero': 'nonzero', 'masked_select': 'boolean mask', 'bincount': 'bincount',
          '_unique2': 'unique', 'unique_dim': 'unique', 'unique_consecutive': 'unique'}
INDEX = ('index', 'index_put', 'index_put_', '_index_put_impl_', '_unsafe_index')
SCALAR = ('where', 'fill_', 'fill', 'masked_fill', 'masked_fill_')      # also take a CPU scalar


class Seen:
    """What was noted while a function of the program was on the stack. waits, mistakes: {text:
    times}."""
    def __init__(self, within=''):
        self.waits, self.mistakes = collections.Counter(), collections.Counter()
        self.within = within
        self.asked = None                       # the device that the call of torch names
        self.around = False                     # has it an argument on the GPU?

    def note(self, counter, what):
        frame, place, is_within = sys._getframe(1), None, False
        while frame is not None:                # the innermost line that is not torch's or ours
            code = frame.f_code
            if place is None and not code.co_filename.startswith(LIBRARY):
                place = f'{os.path.basename(code.co_filename)}:{frame.f_lineno}'
            is_within = is_within or code.co_name == self.within
            frame = frame.f_back
        if is_within or counter is self.mistakes:
            counter[f'{place}: {what}'] += 1


seen = Seen()


class GPU(torch.Tensor):
    """A tensor on the pretended device; `inner` is a CPU tensor with its values."""
    @staticmethod
    def __new__(cls, inner):
        with torch.inference_mode(inner.is_inference()):    # of a view it depends on the base
            self = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
                dtype=inner.dtype, device=CPU)
        self.inner = inner
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl
    device, is_cuda, is_cpu = property(lambda self: CUDA), True, False

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def set_data(self, value):                  # module.to(dtype) assigns parameter.data
        torch.Tensor.data.__set__(self, value)
        self.inner = value.inner
    data = property(lambda self: self.detach(), set_data)

    def read(self, what):
        seen.note(seen.waits, what)
        return self.inner.detach()

    def tolist(self):
        return self.read('tolist').tolist()

    def __repr__(self, **kwargs):
        return repr(self.read('print')).replace('tensor(', 'cuda_tensor(')

    def __format__(self, spec):
        return format(self.item(), spec) if self.dim() == 0 else format(repr(self), spec)

    def __reduce_ex__(self, protocol):          # torch.save; torch.load(map_location='cpu')
        return self.read('pickle').__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return self.detach().clone().requires_grad_(self.requires_grad)

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
    __array__ = numpy


def mixing(func, name, args, tensors):
    """What CUDA would say of tensors of two devices; None: it allows them."""
    cpu = [t for t in tensors if not isinstance(t, GPU)]
    if not cpu or len(cpu) == len(tensors) or name in ('copy_', '_foreach_copy_'):
        return None
    if name in INDEX:
        if not isinstance(args[0], GPU):
            return 'indices, or values, on cuda for a tensor on the cpu'
        values = [t for t in args[2:] if isinstance(t, torch.Tensor) and not isinstance(t, GPU)]
        return 'values on the cpu' if any(t.dim() > 0 for t in values) else None
    takes_scalars = torch.Tag.pointwise in func.tags or name in SCALAR
    is_written = name.endswith('_') and not isinstance(args[0], GPU)
    if takes_scalars and not is_written and all(t.dim() == 0 for t in cpu):
        return None
    return 'Expected all tensors to be on the same device, but found cuda:0 and cpu!'


def waiting(name, args, kwargs, tensors, to_cuda):
    """Why the GPU would be waited for; None: it would not."""
    is_gpu = [isinstance(t, GPU) for t in tensors]
    if name in ALWAYS and any(is_gpu):
        return ALWAYS[name]
    if name == 'repeat_interleave' and any(is_gpu) and kwargs.get('output_size') is None:
        return 'repeat_interleave by a tensor'
    if name in INDEX and is_gpu[0]:
        indices = [index for index in args[1] if index is not None]
        is_cpu_value = name != 'index' and not isinstance(args[2], GPU)     # a scalar
        if any(not isinstance(index, GPU) for index in indices):
            return 'index copied from the cpu'
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return None if is_cpu_value and len(indices) == 1 else 'boolean mask'   # masked_fill
        return 'index_put of a scalar: it is copied from the cpu' if is_cpu_value else None
    if name in ('_to_copy', 'copy_'):
        source = args[1] if name == 'copy_' else args[0]
        non_blocking = kwargs.get('non_blocking', name == 'copy_' and len(args) > 2 and args[2])
        if isinstance(source, GPU) and not to_cuda:
            return 'RACE: read before it is there' if non_blocking else 'copy to the cpu'
        if to_cuda and not isinstance(source, GPU):
            if not non_blocking:
                return 'blocking copy to cuda'
            return None                         # at most a copy into the driver's memory
    return None


def run(func, args, kwargs):
    """An operation, as CUDA would do it."""
    name = func.overloadpacket.__name__
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    to_cuda = any(isinstance(t, GPU) for t in tensors)
    named = kwargs.get('device')
    if named is not None and torch.device(named).type == 'cuda':    # from inside of torch's Python
        to_cuda = True
        kwargs = kwargs | {'device': CPU}
    elif seen.asked and (not tensors or 'device' in kwargs or name in ('_to_copy', 'lift_fresh')):
        to_cuda = seen.asked == 'cuda'
    elif name == 'copy_':
        to_cuda = isinstance(args[0], GPU)
    elif not tensors:
        to_cuda = seen.around
    problem = mixing(func, name, args, tensors)
    if problem:
        seen.note(seen.mistakes, f'{func}: {problem}')
    wait = waiting(name, args, kwargs, tensors, to_cuda)
    if wait:
        seen.note(seen.waits, wait)

    mine = {id(t.inner): t for t in tensors if isinstance(t, GPU)}
    args, kwargs = tree_map(lambda x: x.inner if isinstance(x, GPU) else x, (args, kwargs))

    def outer(x):
        if id(x) in mine:                       # it was changed in place
            if x.shape != mine[id(x)].shape:
                raise NotImplementedError(f'{func} changes a shape in place')
            return mine[id(x)]
        return GPU(x) if to_cuda and isinstance(x, torch.Tensor) else x

    return tree_map(outer, func(*args, **kwargs))


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Calls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        before = seen.asked, seen.around
        seen.around = any(isinstance(x, GPU) for x in tree_leaves((args, kwargs)))
        seen.asked = None
        try:
            if func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda):
                return self.to(func.__name__, *args, **kwargs)
            if kwargs.get('device') is not None:
                seen.asked = torch.device(kwargs['device']).type
                kwargs['device'] = CPU if seen.asked == 'cuda' else kwargs['device']
            is_copied = func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], GPU)
            if seen.asked == 'cuda' and is_copied:
                seen.note(seen.waits, 'blocking copy to cuda: tensor(), as_tensor()')
            found = func(*args, **kwargs)
            if seen.asked == 'cuda' and not isinstance(found, GPU):
                found = GPU(found.detach()).requires_grad_(found.requires_grad)
            return found
        finally:
            seen.asked, seen.around = before

    def to(self, name, tensor, *args, copy=False, **kwargs):
        if name != 'to':
            device, dtype = torch.device(name), None
            non_blocking = kwargs.get('non_blocking', False)
        elif isinstance((args or (None,))[0], torch.Tensor):
            device, dtype, non_blocking = args[0].device, args[0].dtype, False
        else:
            device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        there = (device or tensor.device).type
        if there == tensor.device.type and dtype in (None, tensor.dtype) and not copy:
            return tensor
        seen.asked = there
        return torch.ops.aten._to_copy(tensor, dtype=dtype or tensor.dtype,
                                       non_blocking=non_blocking)


def pretend(result, within):
    """From now on there is a GPU. Returns a function that writes what was seen to a JSON file."""
    global seen
    seen = Seen(within)
    old_autocast, old_group = torch.autocast, torch._C._group_tensors_by_device_and_dtype
    old_compatible = torch._has_compatible_shallow_copy_type        # asked by module.to(device)

    def autocast(device_type, *args, **kwargs):
        return old_autocast('cpu' if device_type == 'cuda' else device_type, *args, **kwargs)

    def group(lists, with_indices=False):       # for optimizers and clip_grad_norm_
        where = next(t for t in lists[0] if t is not None).device
        return {(where, dtype): rest
                for (_, dtype), rest in old_group(lists, with_indices).items()}

    def compatible(a, b):
        return isinstance(a, GPU) == isinstance(b, GPU) and old_compatible(a, b)

    for name, value in {'is_available': lambda: True, 'device_count': lambda: 1,
                        '_lazy_init': lambda: None, 'set_device': lambda device: None,
                        'current_device': lambda: 0, 'synchronize': lambda *a: None,
                        'is_bf16_supported': lambda *a, **k: True,
                        'get_device_capability': lambda *a: (9, 0)}.items():
        setattr(torch.cuda, name, value)
    torch._has_compatible_shallow_copy_type = compatible
    torch.autocast = torch.amp.autocast = autocast
    torch._C._group_tensors_by_device_and_dtype = group
    for mode in (Operations(), Calls()):
        mode.__enter__()

    def write():
        with open(result, 'w', encoding='utf-8') as file:
            json.dump({'waits': seen.waits, 'mistakes': seen.mistakes}, file)

    return write
