"""Memory pools with an allocator of one's own: sleep mode. The allocator here is a small one; vllm-ascend's own is in
test_vllm_ascend."""

import gc

import pytest
import torch
from acl import rt
from torch_npu import trace
from torch_npu.npu import mem_pool

from tests.emulator import processes

MIB = 1 << 20


class Allocator:
    """Keeps the handles of pooled storages, as vllm-ascend's CaMemAllocator does."""

    def __init__(self):
        self.handles, self.freed = {}, []
        mem_pool.init_module(self.malloc, self.free)
        self.pool = torch.npu.memory.MemPool(
            torch.npu.memory.NPUPluggableAllocator(None, "my_malloc", "my_free")._allocator
        )

    def malloc(self, handle):
        self.handles[handle[2]] = handle

    def free(self, pointer):
        self.freed.append(pointer)
        return self.handles.pop(pointer)

    def make(self, function):
        with torch.npu.memory.use_mem_pool(self.pool):
            return function()


@pytest.fixture
def allocator():
    yield Allocator()
    gc.collect()
    assert mem_pool.unmapped_bytes(0) == 0


def test_storages_made_inside_are_reported_once(allocator):
    outside = torch.ones(4, device="npu")
    x = allocator.make(lambda: torch.ones(3, 5, device="npu").t().add_(1))
    allocator.make(lambda: outside.add_(1).view(2, 2))
    assert list(allocator.handles) == [x.untyped_storage().data_ptr()]
    assert allocator.handles[x.data_ptr()] == (0, 60, x.data_ptr(), x.data_ptr())
    y = torch.ones(2, device="npu")
    assert y.data_ptr() not in allocator.handles


def test_the_end_of_a_storage_is_reported(allocator):
    x = allocator.make(lambda: torch.ones(3, device="npu"))
    pointer = x.data_ptr()
    view = x[1:]
    del x
    assert allocator.freed == []
    del view
    assert allocator.freed == [pointer]


def test_unmapped_memory_is_poisoned_and_free_for_others(allocator):
    x = allocator.make(lambda: torch.ones(MIB, device="npu"))
    (handle,) = allocator.handles.values()
    free, unmaps = torch.npu.mem_get_info()[0], trace.counter("memory.unmaps")
    mem_pool.unmap(*handle)
    assert torch.npu.mem_get_info()[0] - free == 4 * MIB
    assert x.isnan().all()
    assert trace.counter("memory.unmaps") - unmaps == 1
    mem_pool.remap(*handle)
    assert torch.npu.mem_get_info()[0] == free
    assert x.isnan().all(), "what was unmapped is lost"
    x.fill_(2)
    assert x.sum().item() == 2 * MIB


def test_sleeping_memory_leaves_the_budget(allocator):
    x = allocator.make(lambda: torch.empty(4 * MIB, dtype=torch.uint8, device="npu"))
    (handle,) = allocator.handles.values()
    try:
        torch.npu.set_per_process_memory_fraction((torch.npu.memory_allocated() + MIB) / (64 << 30))
        with pytest.raises(RuntimeError, match="NPU out of memory"):
            torch.empty(4 * MIB, dtype=torch.uint8, device="npu")
        mem_pool.unmap(*handle)
        y = torch.empty(4 * MIB, dtype=torch.uint8, device="npu")
        with pytest.raises(RuntimeError, match=r"Tried to map 4\.00 MiB"):
            mem_pool.remap(*handle)
        del y
        mem_pool.remap(*handle)
        assert x.numel() == 4 * MIB
    finally:
        torch.npu.set_per_process_memory_fraction(1.0)


def test_a_storage_may_end_while_it_is_unmapped(allocator):
    before, budget = torch.npu.memory_allocated(), mem_pool.npu_device.budget()
    x = allocator.make(lambda: torch.ones(8, device="npu"))
    mem_pool.unmap(*allocator.handles[x.data_ptr()])
    del x
    assert torch.npu.memory_allocated() == before
    assert mem_pool.npu_device.budget() == budget


def test_wrong_calls_are_reported_and_change_nothing(allocator, capfd):
    x = allocator.make(lambda: torch.ones(2, device="npu"))
    (handle,) = allocator.handles.values()
    mem_pool.remap(*handle)
    mem_pool.unmap(0, 1, 12345, 12345)
    assert capfd.readouterr().err.count("acl Error, code: 107000") == 2
    assert x.tolist() == [1, 1]


def test_a_pool_with_an_allocator_wants_its_callbacks(monkeypatch):
    monkeypatch.setattr(mem_pool, "_callbacks", None)
    pool = torch.npu.memory.MemPool(torch.npu.memory.NPUPluggableAllocator("x.so", "a", "b")._allocator)
    with pytest.raises(RuntimeError, match="init_module comes first"), torch.npu.memory.use_mem_pool(pool):
        pass


def test_backup_and_restore_by_acl(allocator):
    x = allocator.make(lambda: torch.arange(4.0, device="npu"))
    (handle,) = allocator.handles.values()
    _, size, pointer, _ = handle
    backup = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    assert rt.memcpy(backup.data_ptr(), size, pointer, size, 2) == 0
    mem_pool.unmap(*handle)
    mem_pool.remap(*handle)
    assert rt.memcpy(pointer, size, backup.data_ptr(), size, 1) == 0
    assert x.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind, room", [(1, 16), (0, 16), (9, 16), (2, 8)])
def test_acl_refuses_the_wrong_side_and_too_little_room(kind, room):
    x, host = torch.ones(4, device="npu"), torch.zeros(4)
    assert rt.memcpy(host.data_ptr(), room, x.data_ptr(), 16, kind) == 107000
    assert host.eq(0).all()


def test_the_compiled_module_of_vllm_ascend_is_shadowed():
    """In a process of its own: in this one other tests may have registered the module's operators by its own name."""
    pytest.importorskip("vllm_ascend")
    code = (
        "import torch\n"
        "from torch_npu.npu import mem_pool\n"
        "from vllm_ascend import _build_info, vllm_ascend_C\n"
        "assert vllm_ascend_C.__file__.endswith('emulator/vllm_ascend_C.py')\n"
        "assert vllm_ascend_C.python_unmap_and_release is mem_pool.unmap\n"
        "assert _build_info.__sleep_mode_enabled__\n"
    )
    processes.run(code)
