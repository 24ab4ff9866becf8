"""Uses of memory on two streams that nothing orders are found; what is ordered is silent."""

import json

import npu_device
import pytest
import torch
import torch_npu
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_npu.settings import SettingError, race_level

from tests.emulator.processes import run, run_ranks

OFF, WARN, ERROR = 0, 1, 2


@pytest.fixture(autouse=True)
def watched():
    watch(WARN)
    yield
    watch(OFF)


def watch(mode):
    """Start with nothing found, all streams level, and a list of the messages."""
    torch.npu.init()  # it sets the mode of the environment
    messages = []
    npu_device.set_races(mode, messages.append)
    npu_device.order_streams()
    npu_device.forget_races()
    return messages


def found():
    """(kind, first operator, second operator) of each race."""
    return [(r["kind"], r["first"]["operator"], r["second"]["operator"]) for r in npu_device.races()]


def on(stream):
    return torch.npu.stream(stream)


def side_stream():
    return torch.npu.Stream()


def here():
    return torch.npu.current_stream()


# ---- each kind, and its correct version -------------------------------------------------------------------------
def write_then_read(x, side, order):
    x.mul_(2)
    order(here(), side)
    with on(side):
        return x + 1


def read_then_write(x, side, order):
    y = x + 1
    order(here(), side)
    with on(side):
        x.zero_()
    return y


def write_then_write(x, side, order):
    x.fill_(3)
    order(here(), side)
    with on(side):
        x.copy_(torch.ones(4).pin_memory(), non_blocking=True)


def side_copy_then_use(x, side, order):
    with on(side):
        x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
    order(side, here())
    return x.exp()


def view_then_base(x, side, order):
    x[1:3].neg_()
    order(here(), side)
    with on(side):
        return x.view(2, 2).sum()


def result_then_download(x, side, order):
    y = x * 3
    order(here(), side)
    with on(side):
        return y.cpu()


def result_then_number(x, side, order):
    y = x.sum()
    order(here(), side)
    with on(side):
        return y.item()


def operators_of_torch_npu(x, side, order):
    y = torch_npu.npu_swiglu(x)
    order(here(), side)
    with on(side):
        return torch_npu.npu_swiglu(y)


def multi_tensor(x, side, order):
    torch._foreach_mul_([x, torch.ones(2, device="npu")], 2.0)
    order(here(), side)
    with on(side):
        return torch._foreach_add([x], 1.0)


def written_out(x, side, order):
    torch.add(x, 1, out=(y := torch.empty(4, device="npu")))
    order(here(), side)
    with on(side):
        return y[[0, 1]]


CASES = {
    write_then_read: ("read after write", "aten::mul_", "aten::add"),
    read_then_write: ("write after read", "aten::add", "aten::zero_"),
    write_then_write: ("write after write", "aten::fill_", "aten::copy_"),
    side_copy_then_use: ("read after write", "aten::copy_", "aten::exp"),
    view_then_base: ("read after write", "aten::neg_", "aten::sum"),
    result_then_download: ("read after write", "aten::mul", "aten::copy_"),
    result_then_number: ("read after write", "aten::sum", "aten::_local_scalar_dense"),
    operators_of_torch_npu: ("read after write", "npu::npu_swiglu", "npu::npu_swiglu"),
    multi_tensor: ("read after write", "aten::_foreach_mul_", "aten::_foreach_add"),
    written_out: ("read after write", "aten::add", "aten::index"),
}


def recorded(first, second):
    event = torch.npu.Event()
    event.record(first)
    return event


def through_a_third(first, second):
    third = side_stream()
    third.wait_stream(first)
    second.wait_stream(third)


ORDERS = {
    "wait_stream": lambda first, second: second.wait_stream(first),
    "wait_event": lambda first, second: second.wait_event(recorded(first, second)),
    "event.wait": lambda first, second: recorded(first, second).wait(second),
    "event.synchronize": lambda first, second: recorded(first, second).synchronize(),
    "event.query": lambda first, second: recorded(first, second).query(),
    "stream.synchronize": lambda first, second: first.synchronize(),
    "torch.npu.synchronize": lambda first, second: torch.npu.synchronize(),
    "a third stream": through_a_third,
}

NO_ORDERS = {
    "nothing": lambda first, second: None,
    "an event that nobody waits for": recorded,
    "a wait the other way round": lambda first, second: first.wait_stream(second),
    "another stream synchronised": lambda first, second: second.synchronize(),
    "another device synchronised": lambda first, second: torch.npu.synchronize("npu:1"),
}


def matrix():
    x = torch.ones(4, device="npu")
    torch.npu.synchronize()
    return x


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_race_is_found_and_the_correct_version_is_silent(case):
    case(matrix(), side_stream(), ORDERS["wait_stream"])
    assert found() == []
    messages = watch(WARN)
    case(matrix(), side := side_stream(), NO_ORDERS["nothing"])
    assert CASES[case] in found()
    kind, first, second = CASES[case]
    text = next(m for m in messages if kind in m and first in m)
    assert second in text and f"stream {side.stream_id} of npu:0" in text and "stream 0 of npu:0" in text


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("case", [write_then_read, read_then_write, side_copy_then_use], ids=lambda case: case.__name__)
def test_what_orders_streams(case, name):
    case(matrix(), side_stream(), ORDERS[name])
    assert found() == []


@pytest.mark.parametrize("name", NO_ORDERS)
def test_what_does_not(name):
    write_then_read(matrix(), side_stream(), NO_ORDERS[name])
    assert found() == [CASES[write_then_read]]


def test_an_event_recorded_too_early_orders_nothing_after_it():
    x, side = matrix(), side_stream()
    event = torch.npu.Event()
    with on(side):
        event.record()
        x.mul_(2)
    event.wait()
    x.add(1)
    assert found() == [("read after write", "aten::mul_", "aten::add")]


def test_what_synchronises_by_its_result_orders():
    for synchronise in (lambda t: t.cpu(), lambda t: t.item(), lambda t: t.nonzero(), lambda t: bool(t > 0)):
        x, side = matrix(), side_stream()
        with on(side):
            synchronise(x.sum())
        x.zero_()
    assert found() == []


def test_the_message_and_the_row():
    messages = watch(WARN)
    x, side = torch.ones(8, 2, device="npu"), side_stream()
    torch.npu.synchronize()
    for _ in range(3):
        x[2:4].mul_(2)
    with on(side):
        x[2:4].sum()
        x[2:4].sum()
    (message,) = messages
    assert message == (
        f"race between streams (read after write): aten::sum on stream {side.stream_id} of npu:0 reads npu memory "
        "(shape [2, 2], float32, in a storage of 64 bytes) that aten::mul_ on stream 0 of npu:0 writes: nothing orders "
        "the two. Let the second stream wait for the first (wait_stream, or an event recorded after the first "
        "operator), or synchronise."
    )
    (row,) = npu_device.races()
    assert row == {
        "kind": "read after write",
        "first": {"operator": "aten::mul_", "stream": [0, 0], "access": "write"},
        "second": {"operator": "aten::sum", "stream": [0, side.stream_id], "access": "read"},
        "shape": [2, 2],
        "dtype": "float32",
        "bytes": 64,
        "count": 2,
    }


def test_error_raises_at_the_use_and_before_it():
    watch(ERROR)
    x, side = matrix(), side_stream()
    y = x + 1
    with on(side), pytest.raises(RuntimeError, match=r"aten::fill_ on stream .* that aten::add on stream 0"):
        x.fill_(7)
    torch.npu.synchronize()
    assert x.tolist() == [1, 1, 1, 1] and y.tolist() == [2, 2, 2, 2]
    assert len(found()) == 1


# ---- parts of a storage -------------------------------------------------------------------------------------------
DISJOINT = {
    "rows": lambda x: (x[:2], x[2:]),
    "columns": lambda x: (x[:, :2], x[:, 2:]),
    "columns of parts": lambda x: (x.view(2, 2, 4)[..., :1], x.view(2, 2, 4)[..., 1:4]),
    "transposed": lambda x: (x.t()[:2], x.t()[2:]),
    "flat parts": lambda x: (x.view(-1)[:5], x.view(-1)[5:]),
}
OVERLAPPING = {
    "rows": lambda x: (x[:3], x[2:]),
    "columns": lambda x: (x[:, :3], x[:, 2:]),
    "a row and a column": lambda x: (x[1], x[:, 1]),
    "whole and part": lambda x: (x, x[3, 3]),
    "transposed": lambda x: (x.t()[:3], x.t()[2:]),
}


def use_parts(parts):
    x, side = torch.ones(4, 4, device="npu"), side_stream()
    torch.npu.synchronize()
    first, second = parts(x)
    first.zero_()
    with on(side):
        second.zero_()


@pytest.mark.parametrize("name", DISJOINT)
def test_parts_that_do_not_overlap_do_not_race(name):
    use_parts(DISJOINT[name])
    assert found() == []


@pytest.mark.parametrize("name", OVERLAPPING)
def test_parts_that_overlap_do(name):
    use_parts(OVERLAPPING[name])
    assert found() == [("write after write", "aten::zero_", "aten::zero_")]


def test_many_parts_written_by_one_stream_are_remembered():
    x, side = torch.zeros(40, device="npu"), side_stream()
    torch.npu.synchronize()
    for part in x.split(1):
        part.add_(1)
    with on(side):
        x[0].mul(2)
    assert found() == [("read after write", "aten::add_", "aten::mul")]


# ---- memory that is used again ------------------------------------------------------------------------------------
def reuse(protect, after=lambda side: None, size=1000):
    """Memory of the current stream is read on a side stream, freed, and allocated again."""
    x, side = torch.ones(1000, device="npu"), side_stream()
    side.wait_stream(here())
    with on(side):
        y = x * 2
    protect(x, side)
    del x
    after(side)
    z = torch.zeros(size, device="npu")
    return y, z


def test_memory_freed_under_a_stream_that_uses_it_is_found():
    messages = watch(WARN)
    reuse(lambda x, side: None)
    assert found() == [("reuse", "aten::mul", "aten::zero_")]
    assert "record_stream" in messages[0] and "freed" in messages[0]


def test_a_part_of_it_is_enough():
    reuse(lambda x, side: None, size=10)
    assert found() == [("reuse", "aten::mul", "aten::zero_")]


PROTECTED = {
    "record_stream": (lambda x, side: x.record_stream(side), lambda side: None),
    "record_stream of a view": (lambda x, side: x[3:].record_stream(side), lambda side: None),
    "waits before it is freed": (lambda x, side: here().wait_stream(side), lambda side: None),
    "waits before it is used again": (lambda x, side: None, lambda side: here().wait_stream(side)),
    "synchronised": (lambda x, side: None, lambda side: side.synchronize()),
}


@pytest.mark.parametrize("name", PROTECTED)
def test_memory_that_is_protected_is_silent(name):
    reuse(*PROTECTED[name])
    assert found() == []


def test_record_stream_of_another_stream_does_not_help():
    reuse(lambda x, side: x.record_stream(side_stream()))
    assert found() == [("reuse", "aten::mul", "aten::zero_")]


def test_other_streams_and_larger_tensors_do_not_get_the_memory():
    reuse(lambda x, side: None, size=4000)
    assert found() == []
    watch(WARN)
    x, side = torch.ones(1000, device="npu"), side_stream()
    side.wait_stream(here())
    with on(side):
        x.mul(2)
        del x
        torch.zeros(1000, device="npu")
    assert found() == []


# ---- host memory --------------------------------------------------------------------------------------------------
def test_a_copy_back_to_the_device_on_a_stream_without_order():
    x, host, side = matrix(), torch.empty(4).pin_memory(), side_stream()
    host.copy_(x, non_blocking=True)
    back = torch.zeros(4, device="npu")
    side.wait_stream(here())
    with on(side):
        back.copy_(host, non_blocking=True)
    assert found() == []
    host.copy_(x, non_blocking=True)
    torch.npu.synchronize(1)
    with on(side):
        back.copy_(host, non_blocking=True)
    assert found() == [("host memory", "aten::copy_", "aten::copy_")]
    torch.npu.synchronize()


@pytest.mark.filterwarnings("ignore:pinned host memory")
def test_pinned_memory_that_is_overwritten():
    x, host = matrix(), torch.ones(4).pin_memory()
    messages = watch(WARN)
    x.copy_(host, non_blocking=True)
    host.fill_(2)
    torch.npu.synchronize()
    assert found() == [("host memory", "aten::copy_", "the host")]
    assert "the host writes host memory (shape [4], float32, in a storage of 16 bytes) that aten::copy_" in messages[0]


def test_pinned_memory_that_is_filled_between_capture_and_replay_is_silent():
    host, x = torch.ones(4).pin_memory(), torch.zeros(4, device="npu")
    graph, before = torch.npu.NPUGraph(), npu_device.overwritten_uploads()
    with torch.npu.graph(graph):
        x.copy_(host, non_blocking=True)
    for value in range(3):
        host.fill_(value)
        graph.replay()
        assert x.tolist() == [value] * 4
    assert found() == [] and npu_device.overwritten_uploads() == before


class EarlyDictionary(dict):
    """As a tensordict before 0.10 goes to the host: copies that do not block, and nobody waits for them."""

    def to(self, device, wait):
        copied = {name: tensor.to(device, non_blocking=True) for name, tensor in self.items()}
        if wait:
            torch.npu.synchronize()
        return copied


def test_a_dictionary_that_is_used_before_its_copies_are_there():
    data = EarlyDictionary(a=torch.ones(4, device="npu"), b=torch.ones(3, dtype=torch.int64, device="npu"))
    early = data.to("cpu", wait=False)
    assert early["a"].isnan().all() and early["b"].eq(-1).all()
    assert npu_device.pending_copies() == 2
    torch.npu.synchronize()
    late = data.to("cpu", wait=True)
    assert late["a"].tolist() == [1] * 4 and late["b"].tolist() == [1] * 3


# ---- autograd, graphs, devices ------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_a_backward_pass_over_two_streams_is_silent():
    weight, side = torch.ones(3, device="npu", requires_grad=True), side_stream()
    side.wait_stream(here())
    with on(side):
        y = (weight * 2).exp()
    here().wait_stream(side)
    y.record_stream(here())
    (y * weight).sum().backward()
    weight.grad.sum().item()
    assert found() == []


def test_a_race_in_a_backward_pass_has_names():
    weight, side = torch.ones(3, device="npu", requires_grad=True), side_stream()
    torch.npu.synchronize()
    y = weight.exp()
    y.sum().backward()
    with on(side):
        weight.grad.zero_()
    assert [(kind, second) for kind, _, second in found()] == [("write after write", "aten::zero_")]


def capture(x, side, order):
    """A graph with a branch on a side stream; returns it and its result."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 2
        side.wait_stream(here())
        with on(side):
            z = y + 1
        if order:
            here().wait_stream(side)
        result = y * z
    return graph, result


def test_a_graph_is_silent_at_capture_and_replay():
    x, side = torch.ones(4, device="npu"), side_stream()
    graph, result = capture(x, side, order=True)
    for value in range(3):
        x.fill_(value)
        graph.replay()
        result.cpu()
    assert found() == []


def test_a_race_inside_a_capture_is_found():
    capture(matrix(), side_stream(), order=False)
    assert ("read after write", "aten::add", "aten::mul") in found()


def test_a_replay_races_like_an_operator():
    x, side = torch.ones(4, device="npu"), side_stream()
    graph, result = capture(x, side, order=True)
    x.fill_(2)
    with on(side):
        graph.replay()
    assert found() == [("read after write", "aten::fill_", "aten::mul (in a replayed graph)")]
    watch(WARN)
    with on(side):
        graph.replay()
    result.sum()
    assert [second for _, _, second in found()] == ["aten::sum"]


def test_a_graph_that_waits_for_an_external_event_stays_on_its_stream():
    x, given, update = torch.ones(4, device="npu"), torch.ones(4, device="npu"), side_stream()
    graph, event = torch.npu.NPUGraph(), torch.npu.ExternalEvent()
    with torch.npu.graph(graph):
        event.wait()
        event.reset()
        y = x + given
    x.fill_(2)
    graph.replay()
    with on(update):
        given.fill_(3)
        event.record(update)
    assert y.sum().item() == 20
    assert found() == []


def test_the_update_of_a_task_group_uses_no_memory():
    """A device takes the arguments; the work is done by the replay, on its own stream."""
    x, update = torch.ones(4, device="npu"), side_stream()
    graph, event = torch.npu.NPUGraph(), torch.npu.ExternalEvent()
    with torch.npu.graph(graph):
        event.wait()
        event.reset()
        torch.npu.graph_task_group_begin(here())
        x + 1
        handle = torch.npu.graph_task_group_end(here())
    z = x * 3
    graph.replay()
    with on(update):
        torch.npu.graph_task_update_begin(update, handle)
        z + 1
        torch.npu.graph_task_update_end(update)
        event.record(update)
    assert found() == []


def test_a_copy_between_devices_orders_both():
    x = torch.ones(4, device="npu:0")
    y = x.to("npu:1")
    x.zero_()
    with torch.npu.device(1):
        y.add_(1)
    assert found() == []


# ---- collectives --------------------------------------------------------------------------------------------------
COLLECTIVES = """
import sys, torch, torch.distributed as dist, npu_device, torch_npu
dist.init_process_group("hccl")
world = dist.get_world_size()
def names(): return [(r["kind"], r["first"]["operator"], r["second"]["operator"]) for r in npu_device.races()]
x, many = torch.ones(4, device="npu"), torch.zeros(8, device="npu")
for _ in range(2):
    x.add_(1)
    dist.all_reduce(x)
    x.mul_(2)
    work = dist.all_gather_into_tensor(many, x, async_op=True)
    y = x + 1
    work.wait()
    many.add_(1)
    dist.broadcast(y, 0); y.add_(1)
    dist.reduce_scatter_tensor(x, many); x.add_(1)
    dist.all_to_all_single(torch.empty_like(many), many); many.zero_()
    parts = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(parts, x); sum(parts)
    other = 1 - dist.get_rank()
    received = torch.empty_like(x)
    both = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, received, other)]
    for w in dist.batch_isend_irecv(both): w.wait()
    x.copy_(received)
    dist.barrier()
    import torch.distributed._functional_collectives as functional
    functional.all_reduce(x, "sum", dist.group.WORLD).add(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).npu())
    model(x).sum().backward()
    for p in model.parameters(): p.grad.add_(1)
print(names())
work = dist.all_reduce(x, async_op=True)
z = x + 1
work.wait()
work = dist.all_gather_into_tensor(many, x, async_op=True)
x.zero_()
work.wait()
print(names())
dist.barrier(); dist.destroy_process_group()
"""


def test_collectives_are_silent_unless_nobody_waits():
    for process in run_ranks(COLLECTIVES, 2, NPU_EMULATOR_RACES="warn"):
        silent, early = process.stdout.splitlines()
        assert silent == "[]"
        assert early == str(
            [
                ("read after write", "hccl::allreduce", "aten::add"),
                ("write after read", "hccl::allgather_base", "aten::zero_"),
            ]
        )


# ---- the switch ---------------------------------------------------------------------------------------------------
RACE = """
import torch, torch_npu
x, side = torch.ones(4, device="npu"), torch.npu.Stream()
torch.npu.synchronize()
x.mul_(2)
with torch.npu.stream(side):
    y = x + 1
    y = x + 1
print("went on")
"""


def test_warn_prints_a_pair_once_with_its_place_and_the_trace_counts(tmp_path):
    process = run(RACE, NPU_EMULATOR_RACES="warn", NPU_EMULATOR_TRACE=tmp_path)
    assert process.stdout == "went on\n"
    assert process.stderr.count("race between streams") == 1
    assert "  at <string>:7 in <module>" in process.stderr
    (row,) = json.loads(next(tmp_path.glob("*.json")).read_text())["races"]
    assert (row["first"]["operator"], row["second"]["operator"], row["count"]) == ("aten::mul_", "aten::add", 2)


def test_error_ends_the_program():
    process = run(RACE, check=False, NPU_EMULATOR_RACES="error")
    assert process.returncode == 1 and process.stdout == ""
    assert "RuntimeError: race between streams (read after write): aten::add" in process.stderr


def test_off_is_the_default():
    process = run(RACE + "import npu_device; print(npu_device.races())", NPU_EMULATOR_RACES=None)
    assert process.stdout == "went on\n[]\n" and "race" not in process.stderr
    levels = {"off": OFF, "": OFF, "warn": WARN, " error ": ERROR}
    assert {text: race_level({"NPU_EMULATOR_RACES": text}) for text in levels} == levels


@pytest.mark.parametrize("value", ["on", "1", "WARN"])
def test_other_values_are_refused_in_words(value):
    text = f"NPU_EMULATOR_RACES must be one of off, warn, error, found {value!r}. Unset it for 'off'."
    with pytest.raises(SettingError, match=text):
        race_level({"NPU_EMULATOR_RACES": value})


# ---- random programs ----------------------------------------------------------------------------------------------
STREAMS, TENSORS = 3, 2
parts = st.sampled_from([(0, 4), (0, 2), (2, 4), (1, 3)])
stream = st.integers(0, STREAMS - 1)
event = st.integers(0, 1)
step = st.one_of(
    st.tuples(st.sampled_from(["read", "write"]), stream, st.integers(0, TENSORS - 1), parts),
    st.tuples(st.just("record"), stream, event),
    st.tuples(st.sampled_from(["wait"]), stream, event),
    st.tuples(st.just("wait_stream"), stream, stream),
    st.tuples(st.just("synchronize"), stream),
    st.tuples(st.just("synchronize_event"), event),
)


class Model:
    """Happens-before as sets of steps: what is known to be done before what a stream is given next."""

    def __init__(self):
        self.done = [frozenset()] * STREAMS
        self.events, self.uses = {}, []

    def first_race(self, program):
        for number, (what, *arguments) in enumerate(program):
            if what in ("read", "write"):
                if self._races(number, what, *arguments):
                    return number
            else:
                getattr(self, what)(*arguments)
        return None

    def _races(self, number, what, stream, tensor, part):
        for earlier, other, where, (begin, end) in self.uses:
            overlaps = where == tensor and begin < part[1] and part[0] < end
            if overlaps and "write" in (what, other) and earlier not in self.done[stream]:
                return True
        self.uses.append((number, what, tensor, part))
        self.done[stream] |= {number}
        return False

    def record(self, stream, event):
        self.events[event] = self.done[stream]

    def wait(self, stream, event):
        self.done[stream] |= self.events.get(event, frozenset())

    def wait_stream(self, stream, other):
        self.done[stream] |= self.done[other]

    def synchronize(self, stream):
        self.done = [done | self.done[stream] for done in self.done]

    def synchronize_event(self, event):
        self.done = [done | self.events.get(event, frozenset()) for done in self.done]


class Device:
    """The same on the emulated device, which raises at the first race."""

    def __init__(self):
        watch(ERROR)
        self.streams = [torch.npu.default_stream(), *(side_stream() for _ in range(STREAMS - 1))]
        self.events = [torch.npu.Event() for _ in range(2)]
        self.tensors = [torch.zeros(4, device="npu") for _ in range(TENSORS)]
        torch.npu.synchronize()

    def first_race(self, program):
        for number, (what, *arguments) in enumerate(program):
            try:
                getattr(self, what)(*arguments)
            except RuntimeError as error:
                assert "race between streams" in str(error)
                return number
        return None

    def read(self, stream, tensor, part):
        with on(self.streams[stream]):
            self.tensors[tensor][slice(*part)].exp()

    def write(self, stream, tensor, part):
        with on(self.streams[stream]):
            self.tensors[tensor][slice(*part)].add_(1)

    def record(self, stream, event):
        self.events[event].record(self.streams[stream])

    def wait(self, stream, event):
        self.streams[stream].wait_event(self.events[event])

    def wait_stream(self, stream, other):
        self.streams[stream].wait_stream(self.streams[other])

    def synchronize(self, stream):
        self.streams[stream].synchronize()

    def synchronize_event(self, event):
        self.events[event].synchronize()


@settings(max_examples=200, deadline=None)
@given(st.lists(step, min_size=2, max_size=25))
def test_random_programs_have_the_models_verdict(program):
    assert Device().first_race(program) == Model().first_race(program)
