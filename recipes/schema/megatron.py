"""Megatron-core's configuration classes: what override_transformer_config, _ddp_config, _optimizer_config may hold."""

import ast

from recipes.schema import classes

COMPONENT = "megatron-lm"
FOLDER = "megatron/core"
FILES = (
    "megatron/core/model_parallel_config.py",
    "megatron/core/transformer/transformer_config.py",
    "megatron/core/distributed/distributed_data_parallel_config.py",
    "megatron/core/optimizer/optimizer_config.py",
)
CLASSES = ("TransformerConfig", "MLATransformerConfig", "DistributedDataParallelConfig", "OptimizerConfig")


def tables(tree: dict[str, str]) -> dict[str, dict]:
    """Fields of each class, inherited ones included."""
    known = classes.classes(tree[file] for file in FILES)
    return {name: _table(name, known) for name in CLASSES}


def _table(name: str, known: dict[str, classes.Class]) -> dict:
    return {key: _entry(*parts) for key, parts in classes.all_fields(name, known).items()}


def _entry(annotation: ast.expr, default: ast.expr | None) -> dict:
    entry = {"type": ast.unparse(annotation), "default": classes.value(default)}
    choices = _literals(annotation)
    return entry | ({"choices": choices} if choices else {})


def _literals(annotation: ast.expr) -> list | None:
    """The values of a Literal[...], also inside Optional."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            return [item.value for item in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
    return None
