"""Patches by name, and functions of patched files run by themselves, without importing their packages."""

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace

from patches import catalogue, engine
from patches.patch import ADDED, Edits, Patch
from patches.places import place


def patch(name: str) -> Patch:
    """The patch of that id."""
    return {each.id: each for each in catalogue.every()}[name]


def apply(name: str, root: Path) -> engine.Verdict:
    """Applies one patch to a root; its verdict before."""
    judged = engine.judge([patch(name)], place(root))
    engine.apply(judged)
    return judged.verdicts[0]


def targets(name: str) -> list[str]:
    """Modules that a patch edits."""
    return [target.module for target in patch(name).targets if isinstance(target, Edits) and not target.optional]


def added(module: str) -> SimpleNamespace:
    """A fresh module of `patches/added/`."""
    path = ADDED / (module.replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def definition(root: Path, module: str, scope: str, names: dict):
    """A class or function of a file under `root`, run by itself with the given names; decorators are left out."""
    tree = ast.parse(_path(root, module).read_text())
    for part in scope.split("."):
        tree = next(n for n in ast.walk(tree) if getattr(n, "name", None) == part)
    tree.decorator_list = []
    _without_annotations(tree)
    space = dict(names)
    exec(compile(ast.fix_missing_locations(ast.Module([tree], [])), str(module), "exec"), space)
    return space[tree.name]


def statements(root: Path, module: str, scope: str, *beginnings: str) -> str:
    """Statements of a function that begin like these, in the order of the file, as text."""
    tree = ast.parse(_path(root, module).read_text())
    for part in scope.split("."):
        tree = next(n for n in ast.walk(tree) if getattr(n, "name", None) == part)
    found = [(n.lineno, ast.unparse(n)) for n in ast.walk(tree) if isinstance(n, ast.stmt)]
    return "\n".join(text for _, text in sorted(found) if text.startswith(beginnings))


def _path(root: Path, module: str) -> Path:
    """A module of a root, or of the installed packages."""
    found = root.joinpath(*module.split(".")).with_suffix(".py")
    return found if found.is_file() else place(root).module(module)


def _without_annotations(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
