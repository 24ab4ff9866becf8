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


# What takes long and goes one after the other, each kind on one worker: by marker, in the order of their beginning.
LONG = {"training": "runs", "image": "images"}


@pytest.hookimpl(tryfirst=True)  # before the worker looks for groups
def pytest_collection_modifyitems(items):
    """For the two workers of `invoke test`: they begin with the runs and the images; the rest goes by file."""
    order = [*LONG.values()]

    def group(item) -> str:
        return next((LONG[name] for name in LONG if item.get_closest_marker(name)), item.nodeid.partition("::")[0])

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: order.index(group(item)) if group(item) in order else len(order))
