"""What a patch is: a declaration, and edits of syntax trees.

    PATCH = Patch(
        id="verl/rollout-seeds",
        problem="F1",
        matrices=("performance",),
        why="…",
        upstream="ef6eaa05d",
        targets=(
            Edits("verl.workers.megatron_workers", replace("ActorRolloutRefWorker._build_rollout", OLD, NEW)),
            Added("verl.utils.rl_rollout_seeds"),
        ),
    )

One module of `patches/` per patch, in the folder of what it changes; `catalogue` finds it by the name PATCH.
An edit is a function of a LibCST module. It returns the changed module, or the very same one where the edit is there
already; it raises NotNeeded where upstream has no such fault, and Drifted where it finds neither. One that returns
None only judged. All edits of a patch must be pending or all must be there; a half is drifted, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import libcst as cst

ADDED = Path(__file__).resolve().parent / "added"  # modules of ours that patches put beside upstream's

State = Literal["pending", "applied", "not needed", "drifted"]
Edit = Callable[[cst.Module], cst.Module | None]


class NotNeeded(Exception):
    """Upstream has no such fault here; the message says why."""


class Drifted(Exception):
    """Neither what a patch expects nor what it makes of it."""

    def __init__(self, expected: str, found: str):
        super().__init__(f"expected {expected}, found {found}")


@dataclass(frozen=True)
class Edits:
    """Edits of one module of upstream, in order; an optional one may be missing from a package that is there."""

    module: str
    edits: tuple[Edit, ...]
    optional: bool

    def __init__(self, module: str, *edits: Edit, optional: bool = False):
        for name, value in (("module", module), ("edits", edits), ("optional", optional)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Added:
    """A new module of ours: its text is that of the same path under `patches/added/`."""

    module: str

    @property
    def source(self) -> bytes:
        return (ADDED / (self.module.replace(".", "/") + ".py")).read_bytes()


@dataclass(frozen=True)
class Lines:
    """Edits of a file that is not Python. `edit` takes and gives its text, by the same rules as an edit of a tree."""

    package: str  # the package beside which it lies
    pattern: str  # path as glob, from the folder that holds the package
    edit: Callable[[str], str]


Target = Edits | Added | Lines


@dataclass(frozen=True)
class Patch:
    """One change of upstream.

    problem: row of the table of known problems, "" for none. matrices: where it is wanted; its edits still judge by
    themselves. why: what goes wrong without it, in a sentence. upstream: what mends it there, or was tried.
    """

    id: str
    problem: str
    matrices: tuple[str, ...]
    why: str
    upstream: str
    targets: tuple[Target, ...]
