"""Paths that a recipe names: whether they are there, and on what they lie."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from checks.facts.reading import SECTION_SECONDS, STEP_SECONDS, at, side_by_side, text_of
from checks.facts.system import space

MOUNT = re.compile(r"^\S+ \S+ \S+ \S+ (\S+) \S+ .*?- (\S+) \S+", re.MULTILINE)


def paths(named: Mapping[str, str]) -> dict[str, object]:
    """Facts on each path by its key. A file system that hangs costs its own paths only."""
    reads = {key: partial(_path, path) for key, path in named.items()}
    return side_by_side(reads, SECTION_SECONDS - STEP_SECONDS)


def _path(path: str) -> dict:
    place = Path(path).expanduser()
    there = next(parent for parent in (place, *place.parents) if parent.exists())
    found = {"path": str(place), "exists": place.exists(), "folder": place.is_dir()}
    found.update({"file_system": file_system(str(there)), "writable": os.access(there, os.W_OK)})
    found["entries"] = sum(1 for _ in place.iterdir()) if place.is_dir() else None
    found["bytes"] = place.stat().st_size if place.is_file() else None
    return {**found, "free": space(str(there))["free"]}


def file_system(path: str) -> str | None:
    """The type of the file system that holds a path, as the kernel calls it."""
    real = os.path.realpath(path)
    best, found = -1, None
    for mount, kind in MOUNT.findall(text_of(at("/proc/self/mountinfo"))):
        mount = mount.replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, found = len(mount), kind
    return found
