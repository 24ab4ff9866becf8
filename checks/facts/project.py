"""This checkout, and the tools that compile what is compiled at the first use."""

from __future__ import annotations

from functools import partial

from checks.facts.reading import STEP_SECONDS, first_line, output, side_by_side
from checks.facts.system import HERE

COMPILERS = ("g++", "cmake", "ninja")


def tools(seconds: float) -> dict:
    return side_by_side(
        {name: partial(first_line, name, "--version", seconds=seconds - STEP_SECONDS) for name in COMPILERS}, seconds
    )


def project(seconds: float) -> dict:
    inner = seconds - STEP_SECONDS
    commit = partial(output, "git", "-C", HERE, "rev-parse", "HEAD", seconds=inner)
    return {"path": HERE, **side_by_side({"commit": commit, "changed": partial(_changed_files, inner)}, seconds)}


def _changed_files(seconds: float) -> list[str]:
    """Files of the checkout that differ from the commit."""
    status = output("git", "-C", HERE, "status", "--porcelain", "--untracked-files=no", seconds=seconds)
    return [line.strip().split(maxsplit=1)[-1] for line in status.splitlines()]
