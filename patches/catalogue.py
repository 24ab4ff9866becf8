"""All patches: the modules of this folder's packages that have a PATCH."""

import importlib
import pkgutil
from pathlib import Path

from errors import UserError
from patches.patch import Patch

MATRICES = ("performance", "commercial")
SAME_AS = {
    "cpu": "performance"
}  # its verl 0.6.0 is twelve commits after performance's, its vllm-ascend the next release


def patches(matrix: str | None = None) -> list[Patch]:
    """The patches of a matrix, by id; `performance` where none is named."""
    matrix = SAME_AS.get(matrix, matrix) or "performance"
    if matrix not in MATRICES:
        raise UserError(f"--matrix {matrix}: expected one of {', '.join((*MATRICES, *SAME_AS))}")
    return [patch for patch in every() if matrix in patch.matrices]


def every() -> list[Patch]:
    """All patches, by id."""
    found = []
    for folder in sorted(Path(__file__).parent.iterdir()):
        if (folder / "__init__.py").is_file() and folder.name != "added":
            names = [f"patches.{folder.name}.{found.name}" for found in pkgutil.iter_modules([str(folder)])]
            modules = [importlib.import_module(name) for name in names]
            found += [module.PATCH for module in modules if hasattr(module, "PATCH")]
    return sorted(found, key=lambda patch: patch.id)
