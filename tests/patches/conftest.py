"""Folders with a little of upstream."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from patches.places import place


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The folder with exact checkouts of both matrices, where it is given."""
    if not (given := os.environ.get("UPSTREAM_ROOT")):
        pytest.skip("UPSTREAM_ROOT, a folder with checkouts performance/ and commercial/, is not set")
    return Path(given)


@pytest.fixture
def write(tmp_path) -> Callable:
    """Writes files below a root: {"verl/a.py": text}; packages are made of their folders."""

    def make(files: dict[str, str | bytes], root: Path = tmp_path / "root") -> Path:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return root

    return make


@pytest.fixture
def installed(tmp_path) -> Callable:
    """A root with files of the installed packages."""

    def make(*modules: str) -> Path:
        root, here = tmp_path / "packages", place(None)
        for module in modules:
            source = here.module(module)
            target = root / source.relative_to(here.folder(module.split(".")[0]))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
        return root

    return make


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """A kill loses nothing of what was written, only a power cut does: waiting for the disk shows nothing here."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
