"""Memory pools with an allocator of one's own, as far as sleep mode of vllm-ascend needs them (its CaMemAllocator).

The compiled allocator of vllm-ascend is entered by two callbacks, `init_module(malloc, free)`: every storage made
inside use_mem_pool is reported to malloc as the handle (device, bytes, pointer, pointer), and its end to free. The
allocator answers by `unmap` and `remap` of such handles. Memory that is unmapped is poisoned with 0xFF, which is NaN in
every float type, and leaves the budget: who reads it sees it, and another tensor can have it.
"""

import contextlib
import sys
import threading
import weakref

import npu_device
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .. import trace

_lock = threading.RLock()
_callbacks = None
_pooled = {}  # pointer -> (device, bytes) of live storages made in a pool
_unmapped = {}  # the same of those that are unmapped


class NPUPluggableAllocator:
    """An allocator whose functions lie in a shared library; the library is not loaded, see init_module."""

    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
        self._allocator = self

    def allocator(self):
        return self._allocator


class MemPool:
    """A pool of memory that an allocator serves."""

    _next = 1

    def __init__(self, allocator=None):
        self.allocator, self.id = allocator, (0, MemPool._next)
        MemPool._next += 1


def change_current_allocator(allocator) -> None:
    """Refused: the device has one allocator."""
    raise NotImplementedError("The emulated NPU cannot change its allocator for the whole process; use a MemPool.")


def init_module(malloc_callback, free_callback) -> None:
    """The entry of vllm-ascend's compiled allocator: whom to tell of pooled storages."""
    global _callbacks
    _callbacks = (malloc_callback, free_callback)


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    """Storages that this thread makes inside belong to the pool."""
    if pool.allocator is not None and _callbacks is None:
        raise RuntimeError("A pool with an allocator expects its callbacks, found none: init_module comes first.")
    with _Reporter() if pool.allocator is not None else contextlib.nullcontext():
        yield


class _Reporter(TorchDispatchMode):
    """Reports each new device storage once, when the operator that made it returns."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "npu":
                _report(tensor.untyped_storage(), tensor.device.index, args, kwargs)
        return result


def _report(storage, device, args, kwargs):
    pointer, size = storage.data_ptr(), storage.nbytes()
    if not size or pointer in _pooled or pointer in _storages_of((args, kwargs)):
        return
    with _lock:
        _pooled[pointer] = (device, size)
    _callbacks[0]((device, size, pointer, pointer))
    weakref.finalize(storage, _end, pointer)


def _storages_of(arguments):
    """Pointers of the storages among an operator's arguments: those existed before it ran."""
    tensors = (t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.device.type == "npu")
    return {t.untyped_storage().data_ptr() for t in tensors}


def _end(pointer):
    with _lock:
        if _pooled.pop(pointer, None) is None:
            return
        if pointer in _unmapped:
            device, size = _unmapped.pop(pointer)
            _change_budget(device, -size)
    _callbacks[1](pointer)


def unmap(device, size, pointer, handle) -> None:
    """Give the memory behind a pooled storage back to the device; the storage keeps its address."""
    with _lock:
        if _pooled.get(pointer) != (device, size) or pointer in _unmapped:
            return _complain("aclrtUnmapMem", pointer)
        _unmapped[pointer] = (device, size)
        _change_budget(device, size)
    npu_device.fill_poison(pointer, size)
    trace.count("memory.unmaps")
    trace.count("memory.unmapped_bytes", size)


def remap(device, size, pointer, handle) -> None:
    """Put memory behind an unmapped storage again; what it held is lost. RuntimeError if the device is full."""
    with _lock:
        if _unmapped.get(pointer) != (device, size):
            return _complain("aclrtMapMem", pointer)
        free = npu_device.budget(device) - npu_device.memory_used(device)
        if free < size:
            raise RuntimeError(
                f"NPU out of memory. Tried to map {size / 2**20:.2f} MiB for a memory pool; {free / 2**20:.2f} MiB "
                "free."
            )
        del _unmapped[pointer]
        _change_budget(device, -size)
    trace.count("memory.maps")


def unmapped_bytes(device) -> int:
    """Bytes of live storages of a device that have no memory at present."""
    return sum(size for owner, size in list(_unmapped.values()) if owner == device)


def _change_budget(device, bytes):
    """Unmapped storages still count as used, so the budget grows by what they hold."""
    npu_device.set_budget(npu_device.budget(device) + bytes, device)


def _complain(call, pointer):
    """As the compiled allocator: a call that fails is reported and changes nothing."""
    print(
        f"acl Error, code: 107000 at {call}: the pooled storage at {pointer:#x} is not in the state it needs",
        file=sys.stderr,
    )
