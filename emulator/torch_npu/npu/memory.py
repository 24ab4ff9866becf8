"""Memory figures of the device, as the C++ allocator counts them, and the names of torch_npu.npu.memory.

There is no cache: reserved equals allocated. The figures are this process's; another process on the same device is not
seen.
"""

import npu_device

from .. import settings
from . import devices
from .mem_pool import (  # noqa: F401
    MemPool,
    NPUPluggableAllocator,
    change_current_allocator,
    unmapped_bytes,
    use_mem_pool,
)


def memory_allocated(device=None) -> int:
    """Bytes that live storages hold, without those that sleep mode has unmapped."""
    index = devices.index_of(device)
    return npu_device.memory_used(index) - unmapped_bytes(index)


def max_memory_allocated(device=None) -> int:
    """The largest memory_allocated() since the last reset; unmapped bytes count as used at the time of the peak."""
    return npu_device.memory_peak(devices.index_of(device))


def reset_peak_memory_stats(device=None) -> None:
    """The peak starts anew from what is used now."""
    npu_device.reset_peak(devices.index_of(device))


memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device=None) -> None:
    """Accumulated counters cannot be reset; they are not reported."""


def mem_get_info(device=None) -> tuple[int, int]:
    """(free, total) bytes of the device."""
    devices.init()
    total = settings.memory_bytes()
    return total - memory_allocated(device), total


def memory_stats(device=None) -> dict:
    """torch's flat statistics, the keys that training and inference code reads."""
    allocations, frees = npu_device.counts()[:2]  # of all devices
    used, peak = memory_allocated(device), max_memory_allocated(device)
    stats = {"num_alloc_retries": 0, "num_ooms": npu_device.memory_failures(devices.index_of(device))}
    for pool in ("all", "large_pool", "small_pool"):
        shown = pool != "small_pool"
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes"):
            stats[f"{kind}.{pool}.current"] = used if shown else 0
            stats[f"{kind}.{pool}.peak"] = peak if shown else 0
        stats[f"allocation.{pool}.current"] = allocations - frees if shown else 0
        stats[f"allocation.{pool}.allocated"] = allocations if shown else 0
        stats[f"allocation.{pool}.freed"] = frees if shown else 0
        stats[f"inactive_split_bytes.{pool}.current"] = stats[f"inactive_split_bytes.{pool}.peak"] = 0
    return stats


def memory_summary(device=None, abbreviated=False) -> str:
    """The figures as text."""
    free, total = mem_get_info(device)
    used, peak = memory_allocated(device), max_memory_allocated(device)
    return f"NPU memory: {used} allocated, {peak} peak, {free} free of {total} bytes"


def memory_snapshot() -> list:
    """No segments: the allocator keeps no history."""
    return []


def empty_cache() -> None:
    """There is no cache."""


def empty_virt_addr_cache() -> None:
    """There is no cache."""


def ipc_collect() -> None:
    """Nothing is shared between processes."""


def set_per_process_memory_fraction(fraction, device=None) -> None:
    """Limit this process to a share of the device's memory."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    devices.init()
    index = devices.index_of(device)
    npu_device.set_budget(int(fraction * settings.memory_bytes()) + unmapped_bytes(index), index)


def get_allocator_backend() -> str:
    """Name of the allocator."""
    return "native"
