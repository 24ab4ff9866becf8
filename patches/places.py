"""Where the modules of upstream lie: a folder with checkouts or packages, or the running environment's packages.

Nothing is imported: the path finder is asked for top-level packages only, which runs none of their code.
"""

import importlib.util
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from errors import UserError

# Folder of a checkout below a root, by top-level package.
CHECKOUTS = {
    "verl": "verl",
    "recipe": "verl",
    "mindspeed": "MindSpeed",
    "megatron": "Megatron-LM",
    "vllm_ascend": "vllm-ascend",
}


@dataclass(frozen=True)
class Place:
    """`root`: what was given, else None for the running environment. `home`: where the journal is kept."""

    root: Path | None
    home: Path

    def folder(self, package: str) -> Path | None:
        """The folder that holds a top-level package, None where it is not there."""
        for folder in self._candidates(package):
            if (folder / package).is_dir() and not (folder / package / package / "__init__.py").is_file():
                return folder
        return None

    def module(self, name: str, new: bool = False) -> Path | None:
        """The file of a module; with `new`, where it belongs, be it there or not."""
        folder = self.folder(name.split(".")[0])
        if folder is None:
            return None
        path = folder.joinpath(*name.split("."))
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
        path = path.with_name(path.name + ".py")
        return path if new or path.is_file() else None

    def files(self, package: str, pattern: str) -> list[Path]:
        """Files beside a package, by a glob from the folder that holds it."""
        folder = self.folder(package)
        return sorted(folder.glob(pattern)) if folder else []

    def short(self, path: Path) -> str:
        """A path as people read it."""
        return str(path.relative_to(self.home)) if path.is_relative_to(self.home) else str(path)

    def __str__(self):
        return str(self.root or f"the environment {self.home}")

    def _candidates(self, package: str) -> list[Path]:
        if self.root is not None:
            checkout = [self.root / CHECKOUTS[package]] if package in CHECKOUTS else []
            return [*checkout, self.root]
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            return []
        return [Path(found).resolve().parent for found in (spec and spec.submodule_search_locations) or ()]


def place(root: str | Path | None) -> Place:
    """The place that `--root` names."""
    if root is None:
        return Place(None, Path(sysconfig.get_path("purelib")).resolve())
    path = Path(root).expanduser().resolve()
    if not path.is_dir():
        expected = f"a folder with checkouts ({', '.join(dict.fromkeys(CHECKOUTS.values()))}) or packages"
        raise UserError(f"--root {root}: expected {expected}, found {'a file' if path.exists() else 'nothing'} there")
    found = Place(path, path)
    if not any(found.folder(package) for package in CHECKOUTS):
        raise UserError(
            f"--root {root}: expected checkouts ({', '.join(dict.fromkeys(CHECKOUTS.values()))}) or packages "
            f"({', '.join(CHECKOUTS)}), found none of them; name the folder that holds them"
        )
    return found
