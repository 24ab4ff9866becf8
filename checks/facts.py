"""Facts about a machine, as one JSON document.

`collect()` reads files, asks commands and looks at package metadata; it imports nothing that it describes. It never
raises and never waits long: what cannot be read, or not in time, is `{"unknown": reason}` in its place.
"""

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from checks.secrets import redacted

FORMAT = 1  # raised when a key changes its meaning
COMMAND_SECONDS = 1.4
COMMANDS_SECONDS = 1.6  # several, side by side
SECTION_SECONDS = 1.8  # a file system that does not answer must not hold up the rest
ROOT = Path(__file__).resolve().parent.parent

DEVICE_NODES = ("davinci*", "davinci_manager", "devmm_svm", "hisi_hdc")
COMPILERS = ("g++", "cmake", "ninja")

# The environment variables that decide how the stack behaves; others are nobody's business.
VARIABLES = re.compile(
    r"^(ASCEND|ACL|HCCL|HCCP|NPU|TASK_QUEUE|CPU_AFFINITY|PYTORCH|TORCH|VLLM|VERL|RAY|NCCL|GLOO|MASTER|OMP|MKL|HYDRA|HF|"
    r"TRANSFORMERS|CUDA|LCCL|LCAL|MULTI_STREAM|STREAMS_PER_DEVICE|COMBINED_ENABLE)_|"
    r"^(PATH|PYTHONPATH|LD_LIBRARY_PATH|LD_PRELOAD|HOME|TMPDIR|VIRTUAL_ENV|LANG|LC_ALL|INF_NAN_MODE_ENABLE|RANK|WORLD_SIZE"
    r"|LOCAL_RANK|(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy)$"
)


def collect() -> dict:
    """All facts that can be had, by subject."""
    sections: dict[str, Callable[[], object]] = {
        "system": _system,
        "cpu": _cpu,
        "memory": _memory,
        "disk": _disk,
        "python": _python,
        "packages": _packages,
        "environment": _environment,
        "devices": _devices,
        "limits": _limits,
        "tools": _tools,
        "project": _project,
    }
    facts = _side_by_side(sections, SECTION_SECONDS)
    return {"format": FORMAT, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **facts}


def unknown(reason: object) -> dict[str, str]:
    """What stands in the place of a fact that cannot be read."""
    return {"unknown": str(reason)}


def is_unknown(fact: object) -> bool:
    """Whether a fact could not be read."""
    return isinstance(fact, dict) and fact.keys() == {"unknown"}


def _side_by_side(reads: dict[str, Callable[[], object]], seconds: float) -> dict[str, object]:
    """The results by name; `unknown` where one is not there in time. A thread that hangs keeps nothing alive."""
    results: dict[str, object] = {name: unknown(f"not read within {seconds} s") for name in reads}

    def work(name: str) -> None:
        results[name] = _guarded(reads[name])

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in reads]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(results)


def _guarded(read: Callable[..., object], *arguments: object) -> object:
    """A fact, or why it is unknown."""
    try:
        return read(*arguments)
    except Exception as error:  # whatever it is, it must not cost the other facts
        return unknown(f"{type(error).__name__}: {error}")


def _system() -> dict:
    return {
        "hostname": platform.node(),
        "os": _guarded(_os_release),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or unknown("not glibc"),
        "container": _guarded(_in_container),
        "uptime_seconds": _guarded(lambda: round(time.time() - psutil.boot_time())),
    }


def _os_release() -> dict:
    """Name and version of the distribution."""
    release = platform.freedesktop_os_release()
    return {key.lower(): release.get(key) for key in ("ID", "VERSION_ID", "PRETTY_NAME")}


def _in_container() -> bool:
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()


def _cpu() -> dict:
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.*)$", info, re.MULTILINE)
    return {
        "model": model[1] if model else unknown("not in /proc/cpuinfo"),
        "logical": psutil.cpu_count(),
        "physical": psutil.cpu_count(logical=False) or unknown("the kernel does not say"),
        "usable": len(os.sched_getaffinity(0)),
        "quota": _guarded(_cpu_quota),
        "load": list(os.getloadavg()),
    }


def _cpu_quota() -> float | None:
    """Cores that the control group allows; None without a limit."""
    quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _memory() -> dict:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "total": memory.total,
        "available": memory.available,
        "swap_total": swap.total,
        "limit": _guarded(_memory_limit),
        "shared": _guarded(_space, "/dev/shm"),
    }


def _memory_limit() -> int | None:
    """Bytes that the control group allows; None without a limit."""
    limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    return None if limit == "max" else int(limit)


def _disk() -> dict:
    places = {"project": str(ROOT), "temporary": os.environ.get("TMPDIR") or "/tmp", "home": str(Path.home())}
    return {name: _guarded(_space, path) for name, path in places.items()}


def _space(path: str) -> dict:
    usage = shutil.disk_usage(path)
    return {"path": path, "total": usage.total, "free": usage.free, "writable": os.access(path, os.W_OK)}


def _python() -> dict:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "prefix": sys.prefix,
    }


def _packages() -> dict[str, str]:
    """Installed distributions and their versions; of two of one name, the one that an import finds."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(found.items()))


def _environment() -> dict[str, str]:
    """The variables that matter, without what they must not tell."""
    return redacted({name: value for name, value in os.environ.items() if VARIABLES.match(name)})


def _devices() -> dict:
    return {
        "nodes": sorted(str(path) for pattern in DEVICE_NODES for path in Path("/dev").glob(pattern)),
        "driver": _guarded(_version_file, "/usr/local/Ascend/driver/version.info"),
        "firmware": _guarded(_version_file, "/usr/local/Ascend/firmware/version.info"),
        "npu_smi": _guarded(_output, "npu-smi", "info"),
    }


def _version_file(path: str) -> dict[str, str]:
    """The key=value lines of one of the vendor's version files."""
    return dict(re.findall(r"^(\w+)=(.*)$", Path(path).read_text(), re.MULTILINE))


def _limits() -> dict:
    """What this process may use: (soft, hard); -1 is unlimited."""
    names = {"open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC, "core": resource.RLIMIT_CORE}
    return {name: list(resource.getrlimit(which)) for name, which in names.items()}


def _tools() -> dict:
    return _side_by_side({name: partial(_first_line, name, "--version") for name in COMPILERS}, COMMANDS_SECONDS)


def _project() -> dict:
    commit = partial(_output, "git", "-C", str(ROOT), "rev-parse", "HEAD")
    return {"path": str(ROOT), **_side_by_side({"commit": commit, "changed": _changed_files}, COMMANDS_SECONDS)}


def _changed_files() -> list[str]:
    """Files of the checkout that differ from the commit."""
    status = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return [line.strip().split(maxsplit=1)[-1] for line in status.splitlines()]


def _first_line(*command: str) -> str:
    return _output(*command).partition("\n")[0]


def _output(*command: str) -> str:
    """What a command prints. Raises with the reason where it is missing, fails or takes too long."""
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            # the whole group: a child that holds the pipe would keep us waiting
            os.killpg(process.pid, signal.SIGKILL)
            raise RuntimeError(f"{command[0]} did not end within {COMMAND_SECONDS} s") from None
    if process.returncode:
        said = (err.strip() or out.strip()).partition("\n")[0]
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {said}")
    return out.strip()
