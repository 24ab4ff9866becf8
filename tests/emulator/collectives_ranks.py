"""What each of two ranks runs for test_device_collectives.py: prints {case: "" or what went wrong} as JSON.

A case runs the same function on npu tensors over hccl and on CPU tensors over gloo; the results must be equal.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

CASES = {}
rank = int(os.environ["RANK"])
size = int(os.environ["WORLD_SIZE"])


def case(name):
    def register(function):
        CASES[name] = function
        return function

    return register


def compare(name):
    """Registers a function(group, device) -> tensors whose results must agree between the two groups."""

    def register(function):
        def run():
            expected = function(groups["gloo"], "cpu")
            actual = function(groups["hccl"], f"npu:{rank}")
            for a, e in zip(actual, expected, strict=True):
                assert a.device == torch.device(f"npu:{rank}"), a.device
                assert torch.equal(a.cpu(), e), f"{a.tolist()} instead of {e.tolist()}"

        CASES[name] = run
        return function

    return register


def mine(device, *shape, dtype=torch.float32):
    """Values that tell the ranks apart."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, device=device) + 100 * rank + 1).reshape(shape).to(dtype)


@compare("all_reduce")
def _(group, device):
    x = mine(device, 4)
    dist.all_reduce(x, group=group)
    return [x]


@compare("all_reduce, bfloat16 maximum")
def _(group, device):
    x = mine(device, 4, dtype=torch.bfloat16)
    dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    return [x]


def mean(group, device, start):
    """gloo has no average: the CPU's side adds up and divides."""
    x = start(device)
    on_npu = torch.device(device).type == "npu"
    dist.all_reduce(x, dist.ReduceOp.AVG if on_npu else dist.ReduceOp.SUM, group=group)
    return [x if on_npu else x / size]


@compare("all_reduce, average")
def _(group, device):
    return mean(group, device, lambda d: mine(d, 4))


@compare("all_reduce, truth values")
def _(group, device):
    x = torch.tensor([rank == 0, rank == 1, True, False], device=device)
    dist.all_reduce(x, dist.ReduceOp.SUM if torch.device(device).type == "npu" else dist.ReduceOp.MAX, group=group)
    return [x.view(torch.uint8)]


@compare("all_reduce, integers")
def _(group, device):
    x = mine(device, 4, dtype=torch.int64)
    dist.all_reduce(x, dist.ReduceOp.PRODUCT, group=group)
    return [x]


@compare("all_reduce of a view")
def _(group, device):
    x = mine(device, 4, 4)
    dist.all_reduce(x[1:3], group=group)
    return [x]


@case("all_reduce, asynchronous average")
def _():
    x = mine(f"npu:{rank}", 4)
    work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    work.wait()  # divides once
    assert x.tolist() == [51, 52, 53, 54], x.tolist()


@compare("all_reduce_coalesced")
def _(group, device):
    x, y = mine(device, 4), mine(device, 2)
    dist.all_reduce_coalesced([x, y], group=group)
    return [x, y]


@compare("broadcast")
def _(group, device):
    x = mine(device, 3)
    dist.broadcast(x, 1, group=group)
    return [x]


@compare("reduce")
def _(group, device):
    x = mine(device, 3)
    dist.reduce(x, 0, group=group)
    return [x] if rank == 0 else []


@case("reduce, average")
def _():
    x = mine(f"npu:{rank}", 2)
    dist.reduce(x, 0, dist.ReduceOp.AVG)
    assert rank or x.tolist() == [51, 52]


@compare("all_gather")
def _(group, device):
    parts = [torch.empty(3, device=device) for _ in range(size)]
    dist.all_gather(parts, mine(device, 3), group=group)
    return parts


def gathered_uneven(*sizes):
    """Rank r gives r + 1 times `size[r]` ones; gloo takes tensors of one size only."""
    parts = [torch.zeros(size, 2, device=f"npu:{rank}") for size in sizes]
    dist.all_gather(parts, torch.full((sizes[rank], 2), rank + 1.0, device=f"npu:{rank}"))
    assert [part.tolist() for part in parts] == [[[of + 1.0] * 2] * size for of, size in enumerate(sizes)], parts


@case("all_gather, uneven")
def _():
    gathered_uneven(3, 1)


@case("all_gather, uneven and empty")
def _():
    gathered_uneven(0, 2)


@case("all_gather of no dimensions")
def _():
    parts = [torch.empty(1, device=f"npu:{rank}") for _ in range(size)]
    dist.all_gather(parts, torch.tensor(float(rank), device=f"npu:{rank}"))
    assert [p.item() for p in parts] == [0, 1]


@compare("all_gather_into_tensor")
def _(group, device):
    whole = torch.empty(6, device=device)
    dist.all_gather_into_tensor(whole, mine(device, 3), group=group)
    return [whole]


@case("all_gather_into_tensor, coalesced")
def _():
    outputs = [torch.empty(2 * n, device=f"npu:{rank}") for n in (2, 3)]
    with dist._coalescing_manager(device=torch.device(f"npu:{rank}")):
        for n, output in zip((2, 3), outputs, strict=True):
            dist.all_gather_into_tensor(output, mine(f"npu:{rank}", n))
    assert [o.tolist() for o in outputs] == [[1, 2, 101, 102], [1, 2, 3, 101, 102, 103]]


@compare("gather")
def _(group, device):
    parts = [torch.empty(3, device=device) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(device, 3), parts, 0, group=group)
    return parts or []


@compare("scatter")
def _(group, device):
    x = torch.empty(3, device=device)
    dist.scatter(x, [mine(device, 3) + i for i in range(size)] if rank == 1 else None, 1, group=group)
    return [x]


@case("reduce_scatter")
def _():
    x = torch.empty(2, 2, device=f"npu:{rank}")
    dist.reduce_scatter(x, list(mine(f"npu:{rank}", 4, 2).chunk(2)))
    first = 102.0 + 8 * rank
    assert x.tolist() == [[first, first + 2], [first + 4, first + 6]], x.tolist()
    dist.reduce_scatter(x, list(mine(f"npu:{rank}", 4, 2).chunk(2)), dist.ReduceOp.AVG)
    assert x[0, 0].item() == first / 2, x.tolist()


@case("reduce_scatter, uneven")
def _():
    x = torch.empty(1 + rank, device=f"npu:{rank}")
    dist.reduce_scatter(x, list(mine(f"npu:{rank}", 3).split([1, 2])))
    assert x.tolist() == ([102] if rank == 0 else [104, 106]), x.tolist()


@compare("reduce_scatter_tensor")
def _(group, device):
    x = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(x, mine(device, 4), group=group)
    return [x]


@case("reduce_scatter_tensor, average")
def _():
    x = torch.empty(2, device=f"npu:{rank}")
    dist.reduce_scatter_tensor(x, mine(f"npu:{rank}", 4), dist.ReduceOp.AVG)
    assert x.tolist() == [51 + 2 * rank, 52 + 2 * rank], x.tolist()


@compare("all_to_all_single")
def _(group, device):
    x = torch.empty(4, device=device)
    dist.all_to_all_single(x, mine(device, 4), group=group)
    return [x]


@compare("all_to_all_single, uneven")
def _(group, device):
    out, given = ([1, 2], [1, 2]) if rank == 0 else ([2, 1], [2, 1])
    x = torch.empty(3, device=device)
    dist.all_to_all_single(x, mine(device, 3), out, given, group=group)
    return [x]


@compare("all_to_all")
def _(group, device):
    parts = [torch.empty(2, device=device) for _ in range(size)]
    if torch.device(device).type == "npu":
        dist.all_to_all(parts, list(mine(device, 4).chunk(2)), group=group)
    else:  # gloo has no list form
        whole = torch.empty(4)
        dist.all_to_all_single(whole, mine(device, 4), group=group)
        parts = list(whole.chunk(2))
    return parts


@compare("send and recv")
def _(group, device):
    x = mine(device, 3)
    if rank == 0:
        dist.send(x, 1, group=group)
    else:
        dist.recv(x, 0, group=group)
    return [x]


@compare("batch_isend_irecv")
def _(group, device):
    x = torch.empty(3, device=device)
    other = 1 - rank
    works = [
        dist.P2POp(dist.isend, mine(device, 3), other, group=group),
        dist.P2POp(dist.irecv, x, other, group=group),
    ]
    for work in dist.batch_isend_irecv(works):
        work.wait()
    return [x]


@case("barrier")
def _():
    dist.barrier()


@case("functional")
def _():
    x = mine(f"npu:{rank}", 2)
    assert functional.all_reduce(x, "sum", groups["hccl"]).tolist() == [102, 104]
    assert functional.all_gather_tensor(x, 0, groups["hccl"]).tolist() == [1, 2, 101, 102]
    assert functional.reduce_scatter_tensor(x, "sum", 0, groups["hccl"]).tolist() == [102 + 2 * rank]


@case("all_gather_object")
def _():
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": 0}, {"rank": 1}]


@case("broadcast_object_list")
def _():
    found = [f"from {rank}"]
    dist.broadcast_object_list(found, 1)
    assert found == ["from 1"]


@case("subgroup")
def _():
    groups_of_one = [dist.new_group([i], backend="hccl") for i in range(size)]
    x = mine(f"npu:{rank}", 2)
    dist.all_reduce(x, group=groups_of_one[rank])
    assert x.tolist() == [100 * rank + 1, 100 * rank + 2]


@case("a gloo group beside it")
def _():
    x = mine("cpu", 2)
    dist.all_reduce(x, group=groups["gloo"])
    assert x.tolist() == [102, 104]


@case("device mesh")
def _():
    mesh = init_device_mesh("npu", (size,))
    x = mine(f"npu:{rank}", 2)
    dist.all_reduce(x, group=mesh.get_group())
    assert mesh.device_type == "npu"
    assert x.tolist() == [102, 104]


@case("ddp")
def _():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4).to(f"npu:{rank}")
    parallel = nn.parallel.DistributedDataParallel(layer, device_ids=[rank])
    parallel(torch.full((2, 4), rank + 1.0, device=f"npu:{rank}")).sum().backward()
    assert layer.weight.grad[0].tolist() == [3.0] * 4, layer.weight.grad


@case("fsdp2")
def _():
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(f"npu:{rank}")
    alone = [p.detach().clone() for p in model.parameters()]
    x = torch.full((2, 4), rank + 1.0, device=f"npu:{rank}")
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("npu", (size,)))
    fully_shard(model, mesh=init_device_mesh("npu", (size,)))
    output = model(x)
    expected = nn.functional.linear(nn.functional.linear(x, alone[0], alone[1]), alone[2], alone[3])
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    assert all(p.grad.to_local().isfinite().all() for p in model.parameters())
    torch.optim.AdamW(model.parameters()).step()


@case("a cpu tensor")
def _():
    for call in (
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.broadcast(torch.ones(2), 0),
        lambda: dist.all_gather_into_tensor(torch.ones(4), torch.ones(2)),
    ):
        try:
            call()
        except RuntimeError as error:
            assert "No backend type associated with device type cpu" in str(error), error
        else:
            raise AssertionError("a collective on a cpu tensor went through")


@case("cpu and npu tensors")
def _():
    try:
        dist.all_gather_into_tensor(torch.ones(4), torch.ones(2, device=f"npu:{rank}"))
    except RuntimeError as error:
        assert "the hccl process group takes npu tensors" in str(error), error
    else:
        raise AssertionError("gathered npu tensors into a cpu tensor")


@case("barrier lands copies")
def _():
    host = torch.arange(3.0, device=f"npu:{rank}").to("cpu", non_blocking=True)
    assert host.isnan().all()
    dist.barrier()
    assert host.tolist() == [0, 1, 2]


def outcome(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return ""


torch.npu.set_device(rank)
dist.init_process_group("hccl")
groups = {"hccl": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
report = {name: outcome(function) for name, function in CASES.items()}
dist.destroy_process_group()
print(json.dumps(report))
sys.stdout.flush()
