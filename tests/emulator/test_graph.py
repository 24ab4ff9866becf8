"""Graph capture: what is on the tape, what a replay does, what a device refuses while it captures."""

import pytest
import torch
import torch_npu  # noqa: F401
from torch.library import Library
from torch_npu import trace
from torch_npu.operators.registry import operator

from tests.emulator.processes import run_ranks

_library = Library("graph_test", "FRAGMENT")
_library.define("hidden_add(Tensor x, Tensor y) -> ()")  # writes x and does not say so, as vllm::all_reduce does
_library.impl("hidden_add", lambda x, y: [x.add_(y)].clear(), "PrivateUse1")
_library.define("pick(Tensor x) -> Tensor")
_library.impl("pick", lambda x: x[int(x.argmax())] + 0, "PrivateUse1")


@operator(
    "graph_test_add_length(Tensor(a!) out, Tensor lengths) -> ()",
    meta=lambda out, lengths: None,
    host=("lengths",),
    export=False,
)
def _add_length(out, lengths):
    out.add_(int(lengths.sum()))


add_length = torch.ops.npu.graph_test_add_length


def capture(function):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = function()
    return graph, result


def test_a_replay_works_on_the_memory_of_the_capture():
    x, out = torch.ones(3, device="npu"), torch.zeros(3, device="npu")
    graph, y = capture(lambda: out.copy_(x * 2 + 1).add(1))
    address = y.data_ptr()
    x.fill_(10)
    graph.replay()
    assert out.tolist() == [21, 21, 21]
    assert y.tolist() == [22, 22, 22]
    assert y.data_ptr() == address


def test_views_and_in_place_work_are_on_the_tape():
    x = torch.zeros(2, 3, device="npu")
    graph, _ = capture(lambda: x[:, 1].add_(1).mul_(2))
    x.zero_()
    graph.replay()
    graph.replay()
    assert x.tolist() == [[0, 6, 0], [0, 6, 0]]


def test_python_scalars_are_frozen():
    x, factor = torch.ones(1, device="npu"), 3
    graph, y = capture(lambda: x * factor)
    factor = 5
    graph.replay()
    assert y.item() == 3


def test_host_tensors_of_npu_operators_are_frozen():
    out, lengths = torch.zeros(1, device="npu"), torch.tensor([1, 2])
    graph, _ = capture(lambda: add_length(out, lengths))
    lengths.fill_(50)
    out.zero_()
    graph.replay()
    assert out.item() == 3


def test_a_copy_from_pinned_memory_reads_the_host_again():
    host, x = torch.tensor([1.0]).pin_memory(), torch.zeros(1, device="npu")
    graph, _ = capture(lambda: x.copy_(host, non_blocking=True))
    host.fill_(4)
    graph.replay()
    assert x.item() == 4


def test_operators_that_hide_their_write_are_on_the_tape():
    x, y = torch.zeros(2, device="npu"), torch.ones(2, device="npu")
    graph, _ = capture(lambda: torch.ops.graph_test.hidden_add(x, y))
    x.zero_()
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2]


def test_what_python_operators_issue_is_on_the_tape_not_the_operator():
    x, y, runs = torch.zeros(2, device="npu"), torch.ones(2, device="npu"), []
    library = Library("graph_test_python", "FRAGMENT")
    library.define("twice(Tensor x, Tensor y) -> Tensor")
    library.impl("twice", lambda x, y: runs.append(0) or torch.ops.graph_test.hidden_add(x, y) or x * 2, "PrivateUse1")
    graph, result = capture(lambda: torch.ops.graph_test_python.twice(x, y))
    x.zero_()
    graph.replay()
    assert (x.tolist(), result.tolist()) == ([1, 1], [2, 2])
    assert len(runs) == 1


def test_a_synchronisation_inside_a_python_operator_is_refused():
    x = torch.ones(2, device="npu")
    assert torch.ops.graph_test.pick(x).item() == 1
    with pytest.raises(RuntimeError, match="error code is 107027"):
        capture(lambda: torch.ops.graph_test.pick(x))


def test_host_work_runs_at_capture_only():
    x, host = torch.zeros(1, device="npu"), torch.zeros(1)
    graph, _ = capture(lambda: x.add_(host.add_(1).item()))
    graph.replay()
    assert host.item() == 1
    assert x.item() == 2


def test_random_numbers_are_new_in_each_replay():
    graph, x = capture(lambda: torch.rand(8, device="npu"))
    graph.replay()
    first = x.clone()
    graph.replay()
    assert not torch.equal(first, x)


def test_inference_mode_inside_only():
    x = torch.ones(2, device="npu")
    with torch.inference_mode():
        graph, y = capture(lambda: x + 1)
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3, 3]


SYNCHRONISATIONS = {
    "item": lambda x: x[0].item(),
    "truth": lambda x: bool(x[0] > 0),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask_assignment": lambda x: x.__setitem__(x > 0, torch.ones(3, device="npu")),
    "unique": lambda x: x.unique(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", torch.float64),
    "copy_": lambda x: torch.empty(3).copy_(x),
    "equal": lambda x: torch.equal(x, x),
    "synchronize": lambda x: torch.npu.synchronize(),
    "stream": lambda x: torch.npu.current_stream().synchronize(),
    "numpy": lambda x: x.cpu().numpy(),
}


@pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference"])
@pytest.mark.parametrize("name", SYNCHRONISATIONS)
def test_waiting_for_the_device_is_refused(name, inference):
    x = torch.ones(3, device="npu")
    with (
        torch.inference_mode(inference),
        pytest.raises(RuntimeError, match=r"AclrtSynchronizeStreamWithTimeout.*error code is 107027"),
    ):
        capture(lambda: SYNCHRONISATIONS[name](x))
    assert not torch.npu.is_current_stream_capturing()
    assert SYNCHRONISATIONS[name](x) is not x, "refused outside of a capture, too"


def test_integer_indices_need_no_synchronisation():
    x, i = torch.arange(4.0, device="npu"), torch.tensor([2, 0], device="npu")
    graph, y = capture(lambda: x[i])
    i.copy_(torch.tensor([3, 3]))
    graph.replay()
    assert y.tolist() == [3, 3]


def test_a_non_blocking_copy_to_the_host_is_allowed():
    x, host = torch.ones(2, device="npu"), torch.zeros(2).pin_memory()
    graph, _ = capture(lambda: host.copy_(x, non_blocking=True))
    x.fill_(6)
    graph.replay()
    torch.npu.synchronize()
    assert host.tolist() == [6, 6]


def test_task_queue_2_is_refused(monkeypatch):
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "2")
    with pytest.raises(RuntimeError, match="Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture"):
        capture(lambda: None)
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "1")
    capture(lambda: None)


def test_misuse_is_refused_as_on_a_device():
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    graph, _ = capture(lambda: torch.ones(1, device="npu"))
    with pytest.raises(RuntimeError, match="already owns a captured graph"), torch.npu.graph(graph):
        pass
    graph.reset()
    with pytest.raises(RuntimeError, match="preceding successful capture"):
        graph.replay()


def test_a_failed_capture_leaves_nothing_behind():
    graph, x = torch.npu.NPUGraph(), torch.ones(1, device="npu")
    with pytest.raises(KeyError), torch.npu.graph(graph):
        x.add_(1)
        raise KeyError("stop")
    assert not torch.npu.is_current_stream_capturing()
    assert torch.npu.current_stream().npu_stream == 0
    with torch.npu.graph(graph):
        x.mul_(3)
    x.fill_(1)
    graph.replay()
    assert x.item() == 3


def test_capturing_is_known_inside_only():
    seen = []
    capture(lambda: seen.append(torch.npu.is_current_stream_capturing()))
    assert seen == [True]
    assert not torch.npu.is_current_stream_capturing()


def test_pools_have_identities():
    first, second = torch.npu.graph_pool_handle(), torch.npu.graph_pool_handle()
    assert first != second
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=first):
        pass
    assert graph.pool() == first


def test_captures_replays_and_operators_are_counted():
    names = ("graphs.captured", "graphs.replayed", "graphs.recorded")
    before = [trace.counter(n) for n in names]
    x = torch.ones(1, device="npu")
    graph, _ = capture(lambda: (x + 1) * 2)
    graph.replay()
    graph.replay()
    assert [trace.counter(n) - b for n, b in zip(names, before, strict=True)] == [1, 2, 2]


def captured_group(out, lengths, event):
    """As vllm-ascend's attention in a full graph: wait for the update, then the operator in a group of its own."""
    handles = []

    def work():
        stream = torch.npu.current_stream()
        out.zero_()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        add_length(out, lengths)
        handles.append(torch.npu.graph_task_group_end(stream))
        out.mul_(10)

    graph, _ = capture(work)
    return graph, handles[0]


def update(handle, event, operator, *arguments):
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, handle)
        operator(*arguments)
        torch.npu.graph_task_update_end(stream)
        event.record(stream)


def test_a_task_group_runs_with_its_new_arguments():
    out, event = torch.zeros(1, device="npu"), torch.npu.ExternalEvent()
    graph, handle = captured_group(out, torch.tensor([1]), event)
    for length in (7, 8):
        graph.replay()
        assert out.item() == 0, "the replay did not stop at the event"
        update(handle, event, add_length, out, torch.tensor([length]))
        assert out.item() == 10 * length


def test_an_update_that_never_comes_is_found():
    out, event = torch.zeros(1, device="npu"), torch.npu.ExternalEvent()
    graph, handle = captured_group(out, torch.tensor([1]), event)
    graph.replay()
    with pytest.raises(RuntimeError, match=r"waits for 1 ExternalEvent.*on a device this hangs"):
        torch.npu.synchronize()
    with pytest.raises(RuntimeError, match="on a device this hangs"):
        graph.replay()
    update(handle, event, add_length, out, torch.tensor([2]))
    torch.npu.synchronize()
    assert out.item() == 20


def test_an_update_must_issue_the_captured_operators():
    out, event = torch.zeros(1, device="npu"), torch.npu.ExternalEvent()
    _, handle = captured_group(out, torch.tensor([1]), event)
    with pytest.raises(RuntimeError, match="must issue the operators captured"):
        update(handle, event, torch.ops.graph_test.hidden_add, out, out)
    with pytest.raises(RuntimeError, match="expected a graph capture"):
        torch.npu.graph_task_group_begin(torch.npu.current_stream())


COLLECTIVES = """
import torch, torch.distributed as dist
dist.init_process_group("hccl")
rank = dist.get_rank()
x = torch.full((2,), float(rank + 1), device="npu")
library = torch.library.Library("graph_ranks", "FRAGMENT")
library.define("all_reduce(Tensor x) -> Tensor")           # as vllm::all_reduce: reduces its input, declared functional
library.impl("all_reduce", lambda x: (dist.all_reduce(x), x)[1], "PrivateUse1")
waited = torch.zeros(2, device="npu")
def work():
    y = x * 1
    dist.all_reduce(y)
    z = x + 0
    torch.ops.graph_ranks.all_reduce(z)
    f = torch.distributed._functional_collectives.all_reduce(x, "sum", dist.group.WORLD) * 1
    g = torch.empty(4, device="npu")
    handle = dist.all_gather_into_tensor(g, x, async_op=True)
    handle.wait()
    return y + 0, z + 0, f, g + 0
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    results = work()
for step in (10.0, 20.0):
    x.fill_(step * (rank + 1))
    graph.replay()
    y, z, f, g = (t.tolist() for t in results)
    assert y == z == f == [3 * step] * 2, (y, z, f)
    assert g == [step] * 2 + [2 * step] * 2, g
print("same", dist.get_backend())
dist.destroy_process_group()
"""


def test_collectives_are_on_the_tape():
    for process in run_ranks(COLLECTIVES, 2):
        assert process.stdout == "same hccl\n"
