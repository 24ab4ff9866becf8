"""CANN and NNAL from their version files, and whether the native libraries can be loaded."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path

from checks.facts import version_files
from checks.facts.reading import STEP_SECONDS, at, guarded, output, side_by_side, text_of

HOME = "/usr/local/Ascend"
# What torch_npu and vllm-ascend load, from the driver, the toolkit and NNAL.
LIBRARIES = ("libascend_hal.so", "libascendcl.so", "libhccl.so", "libatb.so")

LOAD = """
import ctypes, sys
try: ctypes.CDLL(sys.argv[1])
except OSError as error: print(error); sys.exit(1)
"""


def cann(seconds: float) -> dict:
    reads = {name: partial(_load, name, seconds - STEP_SECONDS) for name in LIBRARIES}
    return {
        "toolkits": guarded(_toolkits),
        "sourced": guarded(_sourced),
        "kernels": guarded(_kernels),
        "nnal": guarded(_nnal),
        "library_versions": guarded(_library_versions),
        "libraries": side_by_side(reads, seconds),
        "preloads": guarded(_preloads),
    }


def _toolkits() -> list[dict]:
    """Every installed toolkit: folder, version, architecture, whether `latest` leads to it."""
    found = []
    for base in ("ascend-toolkit", "cann"):
        folder = at(f"{HOME}/{base}")
        latest = (folder / "latest").resolve()
        for file in sorted(folder.glob("*/*-linux/ascend_toolkit_install.info")):
            if file.parts[-3] != "latest":
                found.append({**_install(file), "folder": str(file.parents[1]), "latest": _below(latest, file)})
    return found


def _install(file: Path) -> dict:
    fields = version_files.fields(text_of(file))
    return {"version": fields.get("version"), "inner": fields.get("innerversion"), "machine": fields.get("arch")}


def _below(latest: Path, file: Path) -> bool:
    folder = file.resolve().parents[1]
    inside = (latest / file.parts[-2] / file.name).resolve()  # `latest` may be a folder of links
    return folder == latest or inside == file.resolve()


def _sourced() -> dict:
    """The toolkit that ASCEND_HOME_PATH names."""
    home = os.environ["ASCEND_HOME_PATH"]
    files = sorted(at(home).glob("*-linux/ascend_toolkit_install.info"))
    running = at(home) / "version.cfg"
    found = _install(files[0]) if files else {"version": None}
    return {"home": home, **found, "running": version_files.running(text_of(running)) if running.exists() else {}}


def _kernels() -> list[str]:
    """Chips for which binary operators are installed."""
    home = os.environ.get("ASCEND_HOME_PATH") or f"{HOME}/ascend-toolkit/latest"
    folder = at(home) / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe" / "kernel"
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("ascend"))


def _nnal() -> dict:
    """NNAL: version, and the C++ ABIs that ATB has been built for."""
    home = at(f"{HOME}/nnal/atb/latest")
    fields = version_files.fields(text_of(home / "version.info"))
    abis = sorted(path.name for path in (home / "atb").glob("cxx_abi_[01]"))
    return {"version": version_files.version(fields), "home": str(home), "abis": abis}


def _library_versions() -> list[str]:
    """Versions of CANN that stand in LD_LIBRARY_PATH, with links followed."""
    found = set()
    for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if "ascend" in entry.lower() and at(entry).is_dir():
            match = re.search(r"/(?:ascend-toolkit|cann)[/-]([\d.]+\w*(?:\.\w+)*)", str(at(entry).resolve()))
            if match:
                found.add(match[1])
    return sorted(found)


def _load(name: str, seconds: float) -> dict:
    """Loads a library in a process of its own, as a run would find it."""
    try:
        output(sys.executable, "-S", "-E", "-c", LOAD, name, seconds=seconds)
    except RuntimeError as error:
        reason = str(error).partition(": ")[2] or str(error)
        return {"loads": False, "reason": reason}
    return {"loads": True}


def _preloads() -> list[dict]:
    """The libraries of LD_PRELOAD: whether the files are there."""
    entries = re.split(r"[:\s]+", os.environ.get("LD_PRELOAD", ""))
    return [{"path": entry, "exists": at(entry).exists()} for entry in entries if "/" in entry]
