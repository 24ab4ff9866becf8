"""The memory of a device: what is in use, the budget and the message when it is spent, poison, pinned memory."""

import ctypes
import gc

import npu_device
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

MIB = 1 << 20


@pytest.fixture(autouse=True)
def as_before():
    """Every test finds and leaves the budget and the poison as they are by default."""
    budget = npu_device.budget()
    yield
    npu_device.set_budget(budget)
    npu_device.set_poison(0)
    gc.collect()


def bytes_at(pointer, count):
    return ctypes.string_at(npu_device.host_pointer(pointer), count)


def test_what_is_in_use_follows_tensors():
    before = npu_device.memory_used()
    x = torch.empty(10 * MIB, dtype=torch.uint8, device="npu")
    assert npu_device.memory_used() - before == 10 * MIB
    y = x.float()  # the result of a kernel
    assert npu_device.memory_used() - before == 50 * MIB
    view = y[: 5 * MIB]
    del x, y
    assert npu_device.memory_used() - before == 40 * MIB
    del view
    assert npu_device.memory_used() == before


def test_the_peak_holds_what_a_kernel_needed_for_a_moment():
    x = torch.ones(MIB, device="npu")
    npu_device.reset_peak()
    before = npu_device.memory_used()
    x.add(1).sum().item()
    assert npu_device.memory_peak() >= before + 4 * MIB
    assert npu_device.memory_used() == before
    npu_device.reset_peak()
    assert npu_device.memory_peak() == before


def test_scratch_of_a_kernel_is_device_memory_and_must_fit():
    x = torch.rand(MIB, device="npu")
    npu_device.reset_peak()
    before = npu_device.memory_used()
    x.kthvalue(5)  # sorts a copy
    assert npu_device.memory_peak() >= before + 4 * MIB
    npu_device.set_budget(npu_device.memory_used() + MIB)
    with pytest.raises(RuntimeError, match="out of memory"):
        x.kthvalue(5)


def test_devices_have_memory_of_their_own():
    before = [npu_device.memory_used(i) for i in range(2)]
    x = torch.ones(MIB, device="npu:1")
    y = x * 2  # while npu:0 is current
    used = [npu_device.memory_used(i) - before[i] for i in range(2)]
    assert used == [0, 8 * MIB]
    assert y.to("npu:0").device.index == 0
    assert npu_device.memory_used(0) == before[0]
    npu_device.set_budget(npu_device.memory_used(1) + MIB, 1)
    torch.ones(MIB, device="npu:0")
    with pytest.raises(RuntimeError, match=r"\(NPU 1;"):
        torch.ones(MIB, device="npu:1")


def test_memory_of_the_host_does_not_count():
    before = npu_device.memory_used()
    x = torch.ones(MIB) * 2
    y = torch.ones(4, device="npu").cpu()
    assert npu_device.memory_used() == before
    del x, y


def test_the_message_when_memory_is_spent_is_torch_npus():
    npu_device.set_budget(npu_device.memory_used() + 64 * MIB)
    held = torch.empty(60 * MIB, dtype=torch.uint8, device="npu")
    used, total = npu_device.memory_used() / MIB, npu_device.budget() / MIB
    with pytest.raises(RuntimeError) as caught:
        torch.empty(20 * MIB, dtype=torch.uint8, device="npu")
    assert str(caught.value).splitlines()[0] == (
        f"NPU out of memory. Tried to allocate 20.00 MiB (NPU 0; {total:.2f} MiB total capacity; "
        f"{used:.2f} MiB already allocated; {used:.2f} MiB current active; 4.00 MiB free; "
        f"{used:.2f} MiB reserved in total by PyTorch) "
        "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
    )
    assert type(caught.value) is RuntimeError  # as torch_npu at 7.2.0 raises it
    assert held.numel() == 60 * MIB


def test_the_result_of_a_kernel_must_fit_too_and_nothing_is_lost():
    x = torch.ones(40 * MIB, dtype=torch.uint8, device="npu")
    used, failures = npu_device.memory_used(), npu_device.memory_failures()
    npu_device.set_budget(used + 8 * MIB)
    with pytest.raises(RuntimeError, match=r"Tried to allocate 160.00 MiB"):
        x.float()
    assert npu_device.memory_used() == used
    assert npu_device.memory_failures() == failures + 1
    npu_device.set_budget(1 << 40)
    assert x.sum(dtype=torch.int64).item() == 40 * MIB


@given(st.lists(st.integers(0, 4096), min_size=1, max_size=8), st.integers(0, 16384))
@settings(max_examples=50, deadline=None)
def test_allocations_succeed_exactly_while_they_fit(sizes, room):
    base = npu_device.memory_used()
    npu_device.set_budget(base + room)
    held, expected = [], 0
    for size in sizes:
        if expected + size <= room:
            held.append(torch.empty(size, dtype=torch.uint8, device="npu"))
            expected += size
        else:
            with pytest.raises(RuntimeError, match="out of memory"):
                torch.empty(size, dtype=torch.uint8, device="npu")
        assert npu_device.memory_used() == base + expected
    npu_device.set_budget(1 << 40)


def test_resizing_a_storage_moves_it_and_keeps_what_fits():
    x = torch.arange(4.0, device="npu")
    before = npu_device.memory_used()
    x.untyped_storage().resize_(0)
    assert npu_device.memory_used() == before - 16
    x.untyped_storage().resize_(16)
    assert npu_device.memory_used() == before
    y = torch.arange(4.0, device="npu")
    y.resize_(8)
    assert y[:4].tolist() == [0, 1, 2, 3]


def test_fresh_memory_is_poisoned_on_request():
    npu_device.set_poison(1)
    assert torch.empty(3, device="npu").isnan().all()
    assert torch.empty(3, dtype=torch.bfloat16, device="npu").isnan().all()
    assert torch.empty(3, dtype=torch.int32, device="npu").tolist() == [-1] * 3
    assert torch.zeros(3, device="npu").tolist() == [0] * 3
    assert not (torch.ones(3, device="npu") + 1).isnan().any()
    npu_device.set_poison(0)


@pytest.mark.parametrize("size", [16, 4096, 1 << 16, 4 << 20])
def test_freed_memory_is_poisoned_on_request(size):
    npu_device.set_poison(2)
    x = torch.ones(size, dtype=torch.uint8, device="npu")
    pointer = x.data_ptr()
    assert bytes_at(pointer, size) == b"\1" * size
    del x
    assert bytes_at(pointer, size) == b"\xff" * size


def test_memory_of_the_host_is_never_poisoned():
    npu_device.set_poison(2)
    x = torch.full((1000,), 7.0)
    y = x.clone()
    del x
    assert (torch.full((1000,), 7.0) == y).all()


def test_filling_with_poison_takes_device_addresses():
    x = torch.zeros(8, device="npu")
    npu_device.fill_poison(x.data_ptr() + 16, 8)
    assert x.isnan().tolist() == [False] * 4 + [True] * 2 + [False] * 2


def test_addresses_are_ones_that_the_host_cannot_have():
    x = torch.arange(4, dtype=torch.uint8, device="npu")
    assert x.data_ptr() & 1 << 52
    assert npu_device.host_pointer(x.data_ptr()) == x.data_ptr() ^ 1 << 52
    assert bytes_at(x.data_ptr(), 4) == bytes(range(4))


def test_kernels_in_python_allocate_device_memory_between_enter_and_leave():
    before = npu_device.memory_used()
    npu_device.enter_kernel()
    try:
        result = torch.ones(MIB)
        assert npu_device.memory_used() == before + 4 * MIB
    finally:
        npu_device.leave_kernel()
    wrapped = npu_device.wrap(result)
    assert wrapped.device.type == "npu"
    assert wrapped.sum().item() == MIB
    assert npu_device.memory_used() == before + 4 * MIB
    del result, wrapped
    assert npu_device.memory_used() == before


def test_memory_changes_its_device_with_the_tensor():
    before = [npu_device.memory_used(i) for i in range(2)]
    npu_device.enter_kernel()
    try:
        result = torch.ones(MIB)  # of npu:0, which is current
    finally:
        npu_device.leave_kernel()
    wrapped = [npu_device.wrap(result, 1), npu_device.wrap(torch.ones(MIB), 1)]
    assert [npu_device.memory_used(i) - before[i] for i in range(2)] == [0, 8 * MIB]
    del result, wrapped
    assert [npu_device.memory_used(i) - before[i] for i in range(2)] == [0, 0]


def test_memory_of_others_can_become_device_memory():
    numpy = pytest.importorskip("numpy")
    before = npu_device.memory_used()
    wrapped = npu_device.wrap(torch.from_numpy(numpy.arange(4.0)), 1)
    assert wrapped.device == torch.device("npu:1")
    assert (wrapped + 1).tolist() == [1, 2, 3, 4]
    assert npu_device.memory_used(0) == before


def test_an_alias_shares_the_memory_and_keeps_it():
    x = torch.zeros(4, device="npu")
    host = npu_device.alias(x)
    assert host.device.type == "cpu"
    x.add_(3)
    assert host.tolist() == [3] * 4
    host[0] = 5
    assert x[0].item() == 5
    del x
    assert host.tolist() == [5, 3, 3, 3]


def test_the_accelerator_interface_gives_the_same_figures():
    if not hasattr(torch.accelerator, "memory_allocated"):
        pytest.skip("this torch has no torch.accelerator.memory_*")
    x = torch.ones(MIB, device="npu")
    assert torch.accelerator.memory_allocated() == npu_device.memory_used()
    assert torch.accelerator.max_memory_allocated() == npu_device.memory_peak()
    del x
    torch.accelerator.reset_peak_memory_stats()
    assert npu_device.memory_peak() == npu_device.memory_used()


def test_pinned_memory_is_known_by_its_address():
    x = torch.arange(8.0).pin_memory()
    assert x.is_pinned()
    assert x[3:].is_pinned()
    assert not torch.arange(8.0).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert x.tolist() == list(range(8))
    with pytest.raises(RuntimeError, match="dense CPU tensors can be pinned"):
        torch.empty(3, device="npu", pin_memory=True)
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(3, device="npu").pin_memory()


def test_counts_grow():
    before = npu_device.counts()
    torch.ones(3, device="npu").add(1)
    after = npu_device.counts()
    assert all(b > a for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("call", [lambda: npu_device.set_poison(3), lambda: npu_device.set_budget(-1)])
def test_wrong_settings_are_refused(call):
    with pytest.raises(RuntimeError, match="not"):
        call()
