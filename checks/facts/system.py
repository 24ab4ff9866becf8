"""The host: system, processors, memory, disks, limits."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import time
from collections import Counter

from checks.facts.reading import at, guarded, text_of, unknown

NO_LIMIT = 1 << 62  # what control groups of version 1 say where there is none

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def system() -> dict:
    return {
        "hostname": platform.node(),
        "os": guarded(_os_release),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or unknown("not glibc"),
        "user": os.geteuid(),
        "groups": sorted(os.getgroups()),
        "clock": time.time(),
        "uptime_seconds": guarded(lambda: round(float(text_of(at("/proc/uptime")).split()[0]))),
    }


def _os_release() -> dict:
    """Name and version of the distribution."""
    found = dict(re.findall(r'^(\w+)="?(.*?)"?$', text_of(at("/etc/os-release")), re.MULTILINE))
    return {key.lower(): found.get(key) for key in ("ID", "VERSION_ID", "PRETTY_NAME")}


def cpu() -> dict:
    info = text_of(at("/proc/cpuinfo"), 8 << 20)
    model = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.*)$", info, re.MULTILINE)
    return {
        "model": model[1] if model else unknown("not in /proc/cpuinfo"),
        "logical": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)),
        "quota": guarded(_cpu_quota),
        "load": list(os.getloadavg()),
        "governors": guarded(_governors),
        "numa": guarded(_numa),
    }


def _cpu_quota() -> float | None:
    """Cores that the control group allows; None without a limit."""
    first = at("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")  # control groups of version 1, as on older hosts
    if first.exists():
        quota, period = text_of(first).strip(), text_of(first.with_name("cpu.cfs_period_us")).strip()
    else:
        quota, period = text_of(at("/sys/fs/cgroup/cpu.max")).split()
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _governors() -> dict[str, int]:
    """How many processors run under which frequency governor; empty where the kernel has none."""
    files = at("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return dict(Counter(text_of(file).strip() for file in files))


def _numa() -> dict[str, str]:
    """Processors of each NUMA node, as the kernel lists them."""
    files = at("/sys/devices/system/node").glob("node[0-9]*/cpulist")
    return {file.parent.name: text_of(file).strip() for file in sorted(files)}


def memory() -> dict:
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text_of(at("/proc/meminfo")), re.MULTILINE))
    return {
        "total": int(kib["MemTotal"]) << 10,
        "available": int(kib["MemAvailable"]) << 10,
        "swap_total": int(kib.get("SwapTotal", 0)) << 10,
        "limit": guarded(_memory_limit),
        "shared": guarded(space, "/dev/shm"),
        "huge_pages": guarded(_transparent_huge_pages),
    }


def _memory_limit() -> int | None:
    """Bytes that the control group allows; None without a limit."""
    first = at("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    limit = text_of(first if first.exists() else at("/sys/fs/cgroup/memory.max")).strip()
    return None if limit == "max" or int(limit) >= NO_LIMIT else int(limit)


def _transparent_huge_pages() -> str:
    """`always`, `madvise` or `never`."""
    return re.search(r"\[(\w+)\]", text_of(at("/sys/kernel/mm/transparent_hugepage/enabled")))[1]


def disk() -> dict:
    places = {"project": HERE, "temporary": os.environ.get("TMPDIR") or "/tmp", "home": os.path.expanduser("~")}
    return {name: guarded(space, path) for name, path in places.items()}


def space(path: str) -> dict:
    """Bytes of the file system that holds a path."""
    usage = shutil.disk_usage(path)
    return {"path": path, "total": usage.total, "free": usage.free, "writable": os.access(path, os.W_OK)}


def limits() -> dict:
    """What this process may use: [soft, hard]; -1 is unlimited."""
    names = {"open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "core": resource.RLIMIT_CORE}
    return {name: list(resource.getrlimit(which)) for name, which in names.items()}
