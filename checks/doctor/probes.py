"""Small programs on the device, each in a process of its own: `python -P probes.py NAME`.

Each compares with what the CPU gives for the same numbers and ends with 0, or with a line that says what differs.
"""

import importlib.util
import os
import sys

SIZE = 64


def load() -> None:
    """torch_npu can be imported, and shows a device. Prints how many."""
    if importlib.util.find_spec("torch_npu") is None:
        raise SystemExit("no module torch_npu")
    torch = _torch()
    if not torch.npu.is_available() or not torch.npu.device_count():
        raise SystemExit("torch_npu shows no device (torch.npu.device_count() is 0)")
    print(torch.npu.device_count())


def matmul() -> None:
    """A product of two matrices, in the type that is trained in."""
    torch = _torch()
    x, y = (_numbers(torch, SIZE, SIZE) for _ in range(2))
    _compare(torch, (x.npu() @ y.npu()).cpu(), x.float() @ y.float(), "the product of two matrices")


def grouped_matmul() -> None:
    """Products of rows with their group's matrix, as the experts make them, with group_type."""
    torch = _torch()
    import torch_npu

    groups = [5, 0, 3, 8]
    x, weight = _numbers(torch, sum(groups), SIZE), _numbers(torch, len(groups), SIZE, SIZE)
    (found,) = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight.npu()], split_item=2, group_type=0, group_list_type=1, group_list=torch.tensor(groups).npu()
    )
    parts = zip(x.float().split(groups), weight.float(), strict=True)
    _compare(torch, found.cpu(), torch.cat([rows @ matrix for rows, matrix in parts]), "the grouped product")


def all_reduce() -> None:
    """A sum over the local devices, one process each."""
    torch = _torch()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.npu.set_device(rank)
    torch.distributed.init_process_group("hccl")
    x = torch.full((1024,), float(rank + 1), device="npu")
    torch.distributed.all_reduce(x)
    torch.npu.synchronize()
    wanted = ranks * (ranks + 1) / 2
    if not bool((x == wanted).all()):
        raise SystemExit(f"the sum over {ranks} devices: expected {wanted:g}, found {x[0].item():g} on rank {rank}")
    torch.distributed.destroy_process_group()


def graph() -> None:
    """A graph is captured, and replayed on other numbers in the same memory."""
    torch = _torch()
    x, out = torch.ones(SIZE, device="npu"), torch.zeros(SIZE, device="npu")
    captured = torch.npu.NPUGraph()
    with torch.npu.graph(captured):
        out.copy_(x * 2 + 1)
    x.fill_(10)
    captured.replay()
    torch.npu.synchronize()
    if out.tolist() != [21.0] * SIZE:
        raise SystemExit(f"the replay of a graph: expected 21, found {out[0].item():g}")


def sleep() -> None:
    """vllm-ascend's allocator gives memory back and gets it again, contents included."""
    torch = _torch()
    from vllm_ascend.device_allocator.camem import CaMemAllocator

    allocator = CaMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        x = torch.arange(1 << 20, dtype=torch.float32, device="npu")
    allocator.sleep(offload_tags=("weights",))
    allocator.wake_up()
    _compare(torch, x.cpu(), torch.arange(1 << 20, dtype=torch.float32), "memory after sleep and wake-up")


def _torch():
    import torch
    import torch_npu  # noqa: F401

    torch.manual_seed(0)
    return torch


def _numbers(torch, *shape: int):
    return torch.randn(shape, dtype=torch.float32).to(torch.bfloat16)


def _compare(torch, found, wanted, what: str) -> None:
    """Equal up to what bfloat16 can hold; NaN is never equal."""
    worst = (found.float() - wanted).abs().max().item()
    limit = 0.02 * max(wanted.abs().max().item(), 1.0)
    if not worst <= limit:
        raise SystemExit(f"{what}: expected the CPU's result within {limit:.2g}, found a difference of {worst:.2g}")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
