"""Which kind of value a key takes: judged by the type verl declares, by verl's default and by the recipe's value.

Kinds: bool, int, float (takes an int as well), text, list, mapping, null.
"""

import ast
from collections.abc import Mapping

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

NAMES = {"text": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "list": "a list [a,b]"}
NAMES |= {"mapping": "a mapping {key:value}", "null": "null"}

# verl takes more here than its default shows.
ALSO = {
    "trainer.logger": {"text", "list"},  # verl/utils/tracking.py puts a single name into a list
    "data.train_files": {"text", "list"},  # verl/utils/dataset/rl_dataset.py does the same with a single file
    "data.val_files": {"text", "list"},
    # verl 796871d writes None there, which YAML reads as text; null is the tensor-parallel size
    "actor_rollout_ref.ref.megatron.expert_tensor_parallel_size": {"int", "text", "null"},
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


def fault(key: str, value: object, config: DictConfig, defaults: DictConfig, types: Mapping[str, str]) -> str | None:
    """The message on a value that the key cannot take, or None. An interpolation is trusted.

    `defaults` is verl's config without a recipe, `types` the annotations of its keys.
    """
    return mismatch(key, value, expected(key, config, defaults, types))


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


def expected(key: str, config: DictConfig, defaults: DictConfig, types: Mapping[str, str]) -> set[str]:
    """The kinds that a key takes; empty where nothing says."""
    if key in ALSO:
        return ALSO[key]
    declared = _kinds_of_annotation(ast.parse(types[key], mode="eval").body) if types.get(key) else set()
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
