"""torch_npu.contrib.transfer_to_npu:

code written for CUDA runs on the npu. In processes of its own: it changes torch.
"""

import pytest

from tests.emulator.processes import run, run_ranks

CASES = {
    "factory": 'torch.zeros(2, device="cuda").device',
    "factory with a number": 'torch.ones(2, device="cuda:1").device',
    "factory with a device": 'torch.ones(2, device=torch.device("cuda", 1)).device',
    "like": 'torch.ones_like(torch.ones(1), device="cuda").device',
    "to": 'torch.ones(1).to("cuda").device',
    "to a number": "torch.ones(1).to(1).device",
    "cuda": "torch.ones(1).cuda().device",
    "module": 'torch.nn.Linear(1, 1).to("cuda:1").weight.device',
    "module cuda": "torch.nn.Linear(1, 1).cuda().weight.device",
    "context": "exec(\"with torch.device('cuda'): x = torch.ones(1)\", globals()) or x.device",
    "new": 'torch.ones(1).new_ones(1, device="cuda").device',
    "generator": 'torch.Generator("cuda").device.type + ":0"',
    "current": 'f"npu:{torch.cuda.current_device()}"',
}


def test_devices_are_translated():
    code = "import torch, torch_npu.contrib.transfer_to_npu\n" + "\n".join(f"print({c})" for c in CASES.values())
    found = dict(zip(CASES, run(code).stdout.split(), strict=True))
    ones = {"factory with a number", "factory with a device", "to a number", "module"}
    assert found == {name: "npu:1" if name in ones else "npu:0" for name in CASES}


@pytest.mark.parametrize(
    "code",
    [
        "assert torch.cuda.is_available() and torch.ones(1).cuda().is_cuda and not torch.ones(1).is_cuda",
        "assert isinstance(torch.ones(1).cuda().bfloat16(), torch.cuda.BFloat16Tensor)",
        "assert torch.cuda.Stream is torch.npu.Stream and torch.cuda.memory_allocated() == 0",
        "torch.cuda.manual_seed(1); torch.cuda.set_rng_state(torch.cuda.get_rng_state())",
        "torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.get_device_properties(0).total_memory",
        "f = torch.jit.script(lambda x: x); assert f(3) == 3",
        "torch.cuda.set_rng_state(torch.cuda.get_rng_state('cuda'), torch.device('cuda'))",
        "import torch.cuda.random as r; assert r.get_rng_state is torch.npu.get_rng_state",
        "x = torch.ones(1, 1).cuda()\nwith torch.cuda.amp.autocast(): assert (x @ x).dtype is torch.half",
    ],
)
def test_names_of_cuda(code):
    run(f"import torch, torch_npu.contrib.transfer_to_npu\n{code}")


GROUPS = """
import torch, torch.distributed as dist, torch_npu
if {transfer}: import torch_npu.contrib.transfer_to_npu
options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
options.hccl_config = {{"hccl_buffer_size": 100}}
dist.init_process_group("{backend}", pg_options=options)
x = torch.ones(2, device="{device}") * (dist.get_rank() + 1)
dist.all_reduce(x)
group = dist.new_group([0, 1], backend="{backend}", pg_options=options)
y = torch.ones(2, device="{device}")
dist.all_reduce(y, group=group)
out = torch.empty(2, device="{device}")
dist.all_to_all_single(out, y, [torch.tensor(1), torch.tensor(1)], [1, 1])
backend = dist.group.WORLD._get_backend(torch.device("{device}"))
assert backend.get_hccl_comm_name(dist.get_rank()), "MC2 operators name the group by it"
try: dist.all_reduce(torch.ones(1))
except RuntimeError as error: assert "No backend type associated with device type cpu" in str(error), error
else: raise AssertionError("a CPU tensor on hccl")
print(dist.get_backend(), dist.get_backend(group), x.tolist(), y.tolist(), out.tolist(), dist.is_hccl_available())
dist.barrier(); dist.destroy_process_group()
"""


@pytest.mark.parametrize("transfer, backend, device", [(False, "hccl", "npu"), (True, "nccl", "cuda")])
def test_process_groups(transfer, backend, device):
    for process in run_ranks(GROUPS.format(transfer=transfer, backend=backend, device=device), 2):
        assert process.stdout == "hccl hccl [3.0, 3.0] [2.0, 2.0] [2.0, 2.0] True\n"


STATELESS = """
import datetime, torch, torch.distributed as dist
from torch_npu._C._distributed_c10d import ProcessGroupHCCL
options = ProcessGroupHCCL.Options()
options._timeout = datetime.timedelta(seconds=60)
store = dist.HashStore()
group = ProcessGroupHCCL(store, 0, 1, options)
group._set_sequence_number_for_group()
x = torch.ones(2, device="npu")
group.allreduce([x]).wait()
print(x.tolist(), group.size(), group.name())
"""


def test_a_group_from_a_store():
    """As vllm-ascend's platform makes groups without torch.distributed's global state."""
    assert run(STATELESS).stdout == "[1.0, 1.0] 1 hccl\n"


MANY_GROUPS = """
import collections, os
import torch
import torch.distributed as dist
from torch_npu._C._distributed_c10d import ProcessGroupHCCL
groups = [ProcessGroupHCCL(dist.PrefixStore(str(i), dist.HashStore()), 0, 1) for i in range(5)]
names = [open(f"/proc/self/task/{one}/comm").read().strip() for one in os.listdir("/proc/self/task")]
print(len(groups), names.count("gloo_tcp_loop"))
"""


def test_groups_share_one_transport():
    """Eight ranks of Megatron's dozens of groups kept a core busy with waking up."""
    assert run(MANY_GROUPS).stdout == "5 1\n"
