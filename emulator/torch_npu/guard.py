"""The emulator never stands in for an NPU or a torch_npu that exists."""

import glob
import importlib.metadata
import os
from pathlib import Path

BESIDE = "NPU_EMULATOR_BESIDE"


class EmulatorRefused(RuntimeError):
    """The emulator must not start here."""


def _remove_it(site: Path) -> str:
    return f"Take {site} off PYTHONPATH to use it; the emulator is for machines without one."


def check(site: Path) -> None:
    """Raise EmulatorRefused where an NPU device node exists or another torch_npu distribution is installed.

    site: the folder on sys.path from which this package was imported. Images have both on purpose, a rehearsal there
    runs on their own packages, and say so: NPU_EMULATOR_BESIDE=torch_npu.
    """
    nodes = sorted(glob.glob("/dev/davinci[0-9]*"))
    if nodes:
        raise EmulatorRefused(f"The emulated NPU expects a machine without NPUs, found {nodes[0]}. {_remove_it(site)}")
    found = _real_distribution(site)
    if found and os.environ.get(BESIDE) != "torch_npu":
        raise EmulatorRefused(
            f"The emulated NPU expects no other torch_npu, found torch_npu {found.version} in {found.locate_file('')}. "
            f"{_remove_it(site)}"
        )


def _real_distribution(site: Path):
    """A distribution named torch-npu that lies outside the emulator's own folder, or None."""
    here = os.path.realpath(site)
    for found in importlib.metadata.distributions(name="torch-npu"):
        if os.path.realpath(found.locate_file("")) != here:
            return found
    return None
