"""npu_moe_distribute_dispatch_v2 and _combine_v2 between processes, against every expert run on every token."""

import itertools
import json

import pytest
import torch
import torch_npu

from tests.emulator import processes
from tests.emulator.operators.comparison import seeded

TOKENS, WIDTH, CHOICES, EXPERTS = 5, 8, 3, 8

RANK = """
import json, os, sys
import torch, torch.distributed as dist, torch_npu
from torch_npu import trace

world, masked, kind = (int(x) for x in sys.argv[1:])
tokens, width, choices, experts = 5, 8, 3, 8
dist.init_process_group("hccl")
rank = dist.get_rank()
other = dist.new_group([0], backend="hccl")
name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
g = torch.Generator().manual_seed(rank)
x = torch.randn(tokens, width, generator=g)
ids = torch.stack([torch.randperm(experts, generator=g)[:choices] for _ in range(tokens)]).int()
scales = torch.rand(tokens, choices, generator=g)
active = torch.arange(tokens) < tokens - masked
ranks = dict(group_ep=name, ep_world_size=world, ep_rank_id=rank, moe_expert_num=experts)
ranks |= dict(x_active_mask=active.npu()) if masked else {}
rows, _, info, numbers, received, *_ = torch_npu.npu_moe_distribute_dispatch_v2(
    x.npu(), ids.npu(), **ranks, expert_token_nums_type=kind
)
# an expert multiplies by its number plus one
local = experts // world
counts = numbers.cpu()
counts = counts if kind else torch.diff(counts, prepend=torch.zeros(1, dtype=counts.dtype))
factors = torch.repeat_interleave(torch.arange(1.0 + rank * local, 1 + (rank + 1) * local), counts)
used = int(counts.sum())
worked = rows.clone()
worked[:used] *= factors.npu()[:, None]
result = torch_npu.npu_moe_distribute_combine_v2(worked, ids.npu(), info, received, scales.npu(), **ranks)
print(json.dumps(dict(
    x=x.tolist(), ids=ids.tolist(), scales=scales.tolist(), result=result.cpu().tolist(), counts=counts.tolist(),
    rest_is_nan=bool(rows[used:].isnan().all()), rows=rows[:used].cpu().tolist(), capacity=len(rows),
    calls=[trace.calls(f"npu_moe_distribute_{n}_v2") for n in ("dispatch", "combine")],
)))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("world", "masked", "kind"), [(2, 0, 0), (2, 2, 1)])
def test_every_token_meets_its_experts(world, masked, kind):
    finished = processes.run_ranks(RANK, world, world, masked, kind, NPU_EMULATOR_POISON="fresh")
    ranks = [json.loads(process.stdout.splitlines()[-1]) for process in finished]
    active = TOKENS - masked
    for number, rank in enumerate(ranks):
        x, ids, scales = (torch.tensor(rank[key]) for key in ("x", "ids", "scales"))
        want = (x * (scales * (ids + 1)).sum(1, keepdim=True))[:active]
        found = torch.tensor(rank["result"])
        torch.testing.assert_close(found[:active], want, rtol=1e-5, atol=1e-5)
        assert masked == 0 or found[active:].isnan().all()
        # its own rows: by expert, then by the rank they came from, then by token
        local = EXPERTS // world
        sent = [
            [other["x"][t] for other in ranks for t in range(active) if expert in other["ids"][t]]
            for expert in range(number * local, (number + 1) * local)
        ]
        assert rank["counts"] == [len(rows) for rows in sent]
        assert rank["rows"] == list(itertools.chain(*sent))
        assert rank["capacity"] == world * TOKENS * min(local, CHOICES) and rank["rest_is_nan"]
        assert rank["calls"] == [1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ep_rank_id": 2}, r"ep_rank_id should be in \[0, ep_world_size\)"),
        ({"moe_expert_num": 7}, "moe_expert_num 7 cannot be shared evenly by ep_world_size 2 ranks"),
        ({"tp_world_size": 2}, "does not implement tp_world_size 2"),
        ({"quant_mode": 2}, "does not quantise"),
        ({"expert_token_nums_type": 2}, r"must be 0 \(ends\) or 1 \(counts\), but is 2"),
        ({}, "group_ep is 'nobody', ep_world_size 2 and ep_rank_id 0; expected one process group that fits, found 0"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    call = {"group_ep": "nobody", "ep_world_size": 2, "ep_rank_id": 0, "moe_expert_num": 8} | change
    x = torch.randn(2, 4, generator=seeded("x")).npu()
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_moe_distribute_dispatch_v2(x, torch.zeros(2, 1, dtype=torch.int32).npu(), **call)
