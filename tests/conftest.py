"""Loads the emulated NPU for every test: torch finds it on the path when it is first imported, as in a run."""

import os
import sys

import hypothesis
import pytest

from emulator import site
from emulator.device.build import BuildError

# Modules are compiled once, not by each of the processes that the tests start; a run's launcher sees to it itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Before torch is imported: small tensors on two cores get slower with more threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    sys.path.insert(0, str(site.ensure()))
except (site.SiteError, BuildError) as error:
    pytest.exit(f"the tests need the emulated NPU: {error}", returncode=2)

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)  # before the worker looks for groups
def pytest_collection_modifyitems(items):
    """For the two workers of `invoke test`: one makes the runs first, one after the other; the rest goes by file."""
    for item in items:
        name = "runs" if item.get_closest_marker("training") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: item.get_closest_marker("training") is None)
