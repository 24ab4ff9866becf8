"""Which kind of value a key takes: judged by verl's dataclass for it, by verl's default and by the recipe's value.

Kinds: bool, int, float (takes an int as well), text, list, mapping, null.
"""

import ast
from functools import cache
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

NAMES = {"text": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "list": "a list [a,b]"}
NAMES |= {"mapping": "a mapping {key:value}", "null": "null"}

# verl takes more here than its default shows.
ALSO = {
    "trainer.logger": {"text", "list"},  # verl/utils/tracking.py puts a single name into a list
    "data.train_files": {"text", "list"},  # verl/utils/dataset/rl_dataset.py does the same with a single file
    "data.val_files": {"text", "list"},
}

ANNOTATIONS = {"bool": {"bool"}, "int": {"int"}, "float": {"float"}, "str": {"text"}, "None": {"null"}}
ANNOTATIONS |= {name: {"list"} for name in ("list", "List", "tuple", "Tuple", "Sequence")}
ANNOTATIONS |= {name: {"mapping"} for name in ("dict", "Dict")}


def kind(value: object) -> str:
    """The kind of a value as Hydra gives it."""
    if value is None:
        return "null"
    for type_, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "text")):
        if isinstance(value, type_):
            return name
    return "list" if isinstance(value, list | tuple | ListConfig) else "mapping"


def fault(key: str, value: object, config: DictConfig, defaults: DictConfig) -> str | None:
    """The message on a value that the key cannot take, or None. An interpolation is trusted."""
    return mismatch(key, value, expected(key, config, defaults))


def mismatch(key: str, value: object, accepted: set[str]) -> str | None:
    """The message on a value whose kind is not accepted; an empty set accepts everything."""
    found = kind(value)
    if not accepted or found in accepted or (found == "int" and "float" in accepted):
        return None
    if isinstance(value, str) and ("${" in value or value == "???"):
        return None
    wanted = " or ".join(NAMES[name] for name in sorted(accepted, key=list(NAMES).index))
    text = str(value).lower() if found == "bool" else value
    hint = f"; for text write \"{key}='{text}'\"" if "text" in accepted and found in ("int", "float", "bool") else ""
    return f"{key}: expected {wanted}, found {value!r}, which is {NAMES[found]}{hint}"


def expected(key: str, config: DictConfig, defaults: DictConfig) -> set[str]:
    """The kinds that a key takes; empty where nothing says."""
    if key in ALSO:
        return ALSO[key]
    declared = _declared(key, defaults)
    if declared:
        return declared | _kinds_of_value(key, defaults)
    seen = _kinds_of_value(key, defaults)
    if seen <= {"null"}:
        seen |= _kinds_of_value(key, config)
    if seen <= {"null"}:
        return {"text", "null"} if key.endswith("path") else set()
    return seen


def _kinds_of_value(key: str, config: DictConfig) -> set[str]:
    try:
        if OmegaConf.select(config, key, throw_on_missing=True) is None and not _present(key, config):
            return set()
        return {kind(OmegaConf.select(config, key))}
    except OmegaConfBaseException:
        return set()


def _present(key: str, config: DictConfig) -> bool:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return isinstance(node, DictConfig) and name in node


def _declared(key: str, defaults: DictConfig) -> set[str]:
    """The kinds in the annotation of the dataclass field that verl turns the key into; empty where there is none."""
    names = key.split(".")
    for depth in range(len(names) - 1, 0, -1):
        target = OmegaConf.select(defaults, ".".join(names[:depth]) + "._target_")
        if isinstance(target, str):
            return _field(target, names[depth:])
    return set()


def _field(target: str, path: list[str]) -> set[str]:
    package, _, class_name = target.rpartition(".")
    annotations = _annotations(package)
    for name in path[:-1]:
        annotation = _lookup(class_name, name, annotations)
        class_name = annotation.id if isinstance(annotation, ast.Name) else ""
    annotation = _lookup(class_name, path[-1], annotations)
    return _kinds_of_annotation(annotation) if annotation is not None else set()


def _lookup(class_name: str, field: str, classes: dict[str, tuple[list[str], dict[str, ast.expr]]]) -> ast.expr | None:
    bases, fields = classes.get(class_name, ([], {}))
    if field in fields:
        return fields[field]
    return next((found for base in bases if (found := _lookup(base, field, classes)) is not None), None)


@cache
def _annotations(package: str) -> dict[str, tuple[list[str], dict[str, ast.expr]]]:
    """Classes of a package of verl by name: their bases and annotated fields, read without importing anything."""
    from recipes.compose import verl_configs

    place = verl_configs().parent.parent.joinpath(*package.split(".")[1:])
    files = sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    found = {}
    for file in files:
        for node in ast.walk(ast.parse(_read(file))):
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                found[node.name] = (
                    bases,
                    {
                        item.target.id: item.annotation
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    },
                )
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _kinds_of_annotation(node: ast.expr) -> set[str]:
    """Kinds of an annotation; empty for Any and whatever else says nothing."""
    if isinstance(node, ast.Constant):
        return {"null"} if node.value is None else _kinds_of_annotation(ast.parse(str(node.value), mode="eval").body)
    if isinstance(node, ast.Name):
        return ANNOTATIONS.get(node.id, set() if node.id in ("Any", "object") else {"mapping", "null"})
    if isinstance(node, ast.BinOp):
        return _union([node.left, node.right])
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id == "Optional":
            return _union([*inner, ast.Constant(None)])
        if node.value.id == "Union":
            return _union(inner)
        return ANNOTATIONS.get(node.value.id, set())
    return set()


def _union(nodes: list[ast.expr]) -> set[str]:
    each = [_kinds_of_annotation(node) for node in nodes]
    return set().union(*each) if all(each) else set()
