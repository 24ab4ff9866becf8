"""Copies that do not block: the host reads poison until something synchronises that is ordered after them."""

import itertools

import npu_device
import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_pending():
    npu_device.synchronize()
    npu_device.set_deferred(True)
    yield
    npu_device.synchronize()
    npu_device.set_deferred(True)


def early_copy(values=4):
    """A copy to the host that has not landed, and what it will hold."""
    x = torch.arange(float(values), device="npu")
    host = x.to("cpu", non_blocking=True)
    assert npu_device.pending_copies() == 1
    assert host.isnan().all()
    return host, list(range(values))


def test_what_the_host_reads_too_early_is_not_there():
    host, values = early_copy()
    torch.npu.synchronize()
    assert host.tolist() == values
    assert npu_device.pending_copies() == 0


LANDING = {
    "a blocking copy": lambda: torch.ones(1, device="npu").cpu(),
    "a blocking copy to the device": lambda: torch.ones(1).to("npu"),
    "item()": lambda: torch.ones(1, device="npu").item(),
    "a truth value": lambda: bool(torch.ones(1, device="npu") > 0),
    "nonzero()": lambda: torch.ones(2, device="npu").nonzero(),
    "an index with a mask": lambda: torch.ones(2, device="npu")[torch.ones(2, device="npu") > 0],
    "equal()": lambda: torch.equal(torch.ones(2, device="npu"), torch.ones(2, device="npu")),
    "the stream": lambda: torch.npu.current_stream().synchronize(),
    "a question to the stream": lambda: torch.npu.current_stream().query(),
    "the accelerator": lambda: torch.accelerator.synchronize(),
}


@pytest.mark.parametrize("name", LANDING)
def test_what_synchronises(name):
    host, values = early_copy()
    LANDING[name]()
    assert host.tolist() == values


INDICES = torch.tensor([0, 1], device="npu")

NOT_LANDING = {
    "an operator": lambda: torch.ones(3, device="npu") + 1,
    "an index with integers": lambda: torch.ones(3, device="npu")[INDICES],
    "an assignment": lambda: torch.ones(3, device="npu").fill_(2),
    "an operator on the cpu": lambda: torch.ones(3) + 1,
    "another device": lambda: torch.npu.synchronize("npu:1"),
}


@pytest.mark.parametrize("name", NOT_LANDING)
def test_what_does_not(name):
    host, _ = early_copy()
    NOT_LANDING[name]()
    assert host.isnan().all()


def test_the_values_are_those_of_the_time_of_the_call():
    x = torch.zeros(3, device="npu")
    host = x.to("cpu", non_blocking=True)
    x.fill_(9)
    torch.npu.synchronize()
    assert host.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.complex64])
def test_into_any_type_and_layout(dtype):
    x = torch.arange(12.0, device="npu").reshape(3, 4).t()
    plain = torch.zeros(4, 3, dtype=dtype)
    parts = torch.zeros(8, 3, dtype=dtype)
    plain.copy_(x, non_blocking=True)
    parts[::2].copy_(x, non_blocking=True)
    expected = x.cpu().to(dtype)
    torch.npu.synchronize()
    assert torch.equal(plain, expected)
    assert torch.equal(parts[::2], expected)
    assert not parts[1::2].any()


def test_only_the_copied_part_is_poisoned():
    host = torch.zeros(4, 4)
    host[:, ::2].copy_(torch.ones(4, 2, device="npu"), non_blocking=True)
    assert host[:, 1::2].eq(0).all()
    assert host[:, ::2].isnan().all()


def test_an_event_lands_what_was_queued_before_it():
    x = torch.arange(3.0, device="npu")
    first = x.to("cpu", non_blocking=True)
    event = torch.npu.Event()
    event.record()
    second = x.to("cpu", non_blocking=True)
    event.synchronize()
    assert first.tolist() == [0, 1, 2]
    assert second.isnan().all()
    torch.npu.synchronize()
    assert second.tolist() == [0, 1, 2]


def test_streams_land_their_own_copies_and_those_they_wait_for():
    side, other = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(side):
        host = torch.arange(3.0, device="npu").to("cpu", non_blocking=True)
    torch.npu.current_stream().synchronize()
    other.synchronize()
    assert host.isnan().all()
    other.wait_stream(side)
    other.synchronize()
    assert host.tolist() == [0, 1, 2]


def test_waiting_reaches_through_a_chain_of_streams():
    streams = [torch.npu.Stream() for _ in range(3)]
    with torch.npu.stream(streams[0]):
        host = torch.arange(3.0, device="npu").to("cpu", non_blocking=True)
    for before, after in itertools.pairwise(streams):
        after.wait_stream(before)
    streams[2].synchronize()
    assert host.tolist() == [0, 1, 2]


def test_a_copy_back_on_the_same_stream_reads_what_the_first_one_wrote():
    x = torch.arange(4.0, device="npu")
    host = torch.empty(4).pin_memory()
    host.copy_(x, non_blocking=True)
    back = torch.empty(4, device="npu")
    back.copy_(host, non_blocking=True)
    assert back.tolist() == [0, 1, 2, 3]


def test_a_copy_back_on_an_unordered_stream_does_not():
    x = torch.arange(4.0, device="npu")
    host, back = torch.empty(4).pin_memory(), torch.zeros(4, device="npu")
    host.copy_(x, non_blocking=True)
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        back.copy_(host, non_blocking=True)
        assert back.isnan().all()


def test_blocking_copies_are_there_at_once():
    assert torch.arange(3.0, device="npu").to("cpu").tolist() == [0, 1, 2]
    assert npu_device.pending_copies() == 0


def test_it_can_be_turned_off_and_lands_what_was_pending():
    host, values = early_copy()
    npu_device.set_deferred(False)
    assert host.tolist() == values
    assert torch.arange(3.0, device="npu").to("cpu", non_blocking=True).tolist() == [0, 1, 2]


def test_a_target_that_nobody_holds_is_no_trouble():
    torch.arange(3.0, device="npu").to("cpu", non_blocking=True)
    torch.npu.synchronize()
    assert npu_device.pending_copies() == 0


@pytest.mark.filterwarnings("ignore:pinned host memory")
def test_pinned_memory_overwritten_in_flight_is_counted():
    host, x = torch.ones(4).pin_memory(), torch.empty(4, device="npu")
    before = npu_device.overwritten_uploads()
    x.copy_(host, non_blocking=True)
    torch.npu.synchronize()
    host.zero_()  # after a synchronisation: fine
    torch.npu.synchronize()
    assert npu_device.overwritten_uploads() == before
    x.copy_(host, non_blocking=True)
    host.fill_(2)
    torch.npu.synchronize()
    assert npu_device.overwritten_uploads() == before + 1
    x[:2].copy_(host[2:], non_blocking=True)  # from the middle of the pinned memory
    host[2:].fill_(3)
    torch.npu.synchronize()
    assert npu_device.overwritten_uploads() == before + 2


def test_tensordicts_copy_is_safe_in_the_pinned_version():
    tensordict = pytest.importorskip("tensordict")
    data = tensordict.TensorDict({"a": torch.arange(3.0, device="npu")}, batch_size=[3])
    assert data.to("cpu")["a"].tolist() == [0, 1, 2]
