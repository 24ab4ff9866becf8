"""Facts about a machine, as one JSON document.

`collect()` reads files, asks commands and looks at package metadata; it imports nothing that it describes. It never
raises and never waits long: what cannot be read, or not in time, is `{"unknown": reason}` in its place.

A host without this project's environment can be asked, too: Python 3.9 or newer and this folder's parent on its path,
`python3 -m checks.facts > facts.json`. psutil is used where it is there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from checks.facts import (
    builds,
    cann,
    container,
    environment,
    image,
    network,
    npu,
    packages,
    paths,
    processes,
    project,
    system,
)
from checks.facts.reading import SECTION_SECONDS, STEP_SECONDS, is_unknown, side_by_side, unknown

__all__ = ["FORMAT", "collect", "is_unknown", "unknown"]

FORMAT = 2  # raised when a key changes its meaning


def collect(named: Mapping[str, str] | None = None, seconds: float = SECTION_SECONDS) -> dict:
    """All facts that can be had, by subject, within `seconds`. `named` are a recipe's paths by key."""
    inner = seconds - STEP_SECONDS
    sections = {
        "system": system.system,
        "cpu": system.cpu,
        "memory": system.memory,
        "disk": system.disk,
        "limits": system.limits,
        "npu": partial(npu.npu, inner),
        "cann": partial(cann.cann, inner),
        "container": partial(container.container, inner),
        "image": image.image,
        "network": partial(network.network, inner),
        "python": packages.python,
        "packages": packages.versions,
        "stack": packages.stack,
        "ray": processes.ray,
        "builds": builds.builds,
        "environment": environment.variables,
        "paths": partial(paths.paths, named or {}),
        "tools": partial(project.tools, inner),
        "project": partial(project.project, inner),
    }
    found = side_by_side(sections, seconds)
    return {"format": FORMAT, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **found}
