"""The annotated fields of dataclasses, read from source text: name, annotation, default, inherited ones first."""

import ast
import operator
from collections.abc import Iterable
from dataclasses import dataclass

OPERATORS = {ast.Mult: operator.mul, ast.Pow: operator.pow}


@dataclass(frozen=True)
class Class:
    """A class as it is written: the names of its bases, its own fields with annotation and default expression."""

    bases: tuple[str, ...]
    fields: dict[str, tuple[ast.expr, ast.expr | None]]


def classes(texts: Iterable[str]) -> dict[str, Class]:
    """All classes of some modules by name."""
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    return {node.name: Class(tuple(map(_last_name, node.bases)), _fields(node)) for node in nodes}


def all_fields(name: str, known: dict[str, Class]) -> dict[str, tuple[ast.expr, ast.expr | None]]:
    """The fields of a class and of its bases, in the order in which a dataclass has them."""
    if name not in known:
        return {}
    inherited = [all_fields(base, known) for base in reversed(known[name].bases)]
    return {key: value for fields in [*inherited, known[name].fields] for key, value in fields.items()}


def value(expression: ast.expr | None) -> object:
    """A default as JSON can hold it: the literal, what `field(...)` makes, or the expression's text."""
    if expression is None:
        return None
    if isinstance(expression, ast.Call) and _last_name(expression.func) == "field":
        given = {keyword.arg: keyword.value for keyword in expression.keywords}
        return value(given["default"]) if "default" in given else _made(given.get("default_factory"))
    return literal(expression)


def literal(expression: ast.expr) -> object:
    """The value of a literal, also of products and powers of numbers (`10 * 1024`, `2**32`); else the text."""
    if isinstance(expression, ast.BinOp) and type(expression.op) in OPERATORS:
        left, right = literal(expression.left), literal(expression.right)
        if isinstance(left, int) and isinstance(right, int):
            return OPERATORS[type(expression.op)](left, right)
    try:
        found = ast.literal_eval(expression)
    except ValueError:
        return ast.unparse(expression)
    return list(found) if isinstance(found, tuple) else found


def _made(factory: ast.expr | None) -> object:
    if isinstance(factory, ast.Name) and factory.id in ("dict", "list"):
        return {} if factory.id == "dict" else []
    if isinstance(factory, ast.Lambda):
        return value(factory.body)
    return None if factory is None else f"{ast.unparse(factory)}()"


def _fields(node: ast.ClassDef) -> dict[str, tuple[ast.expr, ast.expr | None]]:
    return {
        item.target.id: (item.annotation, item.value)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not _is_class_variable(item)
    }


def _is_class_variable(item: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(item.annotation)


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).split(".")[-1]
