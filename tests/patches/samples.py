"""A small upstream and patches of it."""

from pathlib import Path

from patches.patch import Edits, Patch
from patches.shapes import replace

A = b"import os\r\n\r\ndef f():\r\n\tfirst( 1 )  # why\r\n"
FILES = {
    "verl/verl/__init__.py": "",
    "verl/verl/a.py": A,
    "verl/verl/b.py": "def g():\n    second()\n",
    "verl/setup.cfg": "torch==1\n",
}


def made(*targets, id="verl/test") -> Patch:
    return Patch(id, "F0", ("performance",), "why", "none", targets)


GUARD = Edits("verl.a", replace("f", "first(1)", "guard()\n..."))
WRAP = Edits("verl.b", replace("g", "second()", "with lock():\n    ...", fixed="third()"))
BOTH = made(GUARD, WRAP)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
