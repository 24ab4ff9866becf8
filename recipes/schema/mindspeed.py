"""MindSpeed's arguments: those its features register, and those they read without registering them.

verl hands override_transformer_config to MindSpeed's `repatch`, which sets every key as an attribute; nobody checks
names, types or choices. What a feature registers as `--a-b` is read as `a_b`.
"""

import ast
from collections.abc import Iterator

from recipes.schema import classes

COMPONENT = "mindspeed"
FOLDER = "mindspeed/features_manager"
ENTRY = f"{FOLDER}/__init__.py"
BASE = "MindSpeedFeature"
ACTIONS = {"store_true": ("bool", False), "store_false": ("bool", True)}


def tables(tree: dict[str, str]) -> dict[str, dict]:
    """The arguments of all features that are switched on by default."""
    features = list(_features(tree))
    registered: dict[str, dict] = {}
    for feature in features:
        registered |= {key: entry for key, entry in _registered(feature) if key not in registered}
    for option, choice in (added for feature in features for added in _added_choices(feature)):
        if choice not in registered.get(option, {}).get("choices", [choice]):
            registered[option]["choices"].append(choice)
    read = {name for feature in features for name in _read(feature)}
    unregistered = {name: {"type": "", "default": None, "listed": False} for name in read - registered.keys()}
    return {"arguments": dict(sorted((registered | unregistered).items()))}


def _features(tree: dict[str, str]) -> Iterator[ast.ClassDef]:
    """The classes that the entry module makes instances of, in its order."""
    known = {
        node.name: node
        for path, text in tree.items()
        if path.startswith(FOLDER)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    entry = ast.parse(tree[ENTRY])
    made = {
        node.func.id: None
        for node in ast.walk(entry)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known
    }
    for name in made:
        yield known[name]


def _registered(feature: ast.ClassDef) -> Iterator[tuple[str, dict]]:
    for call in _calls(feature, "add_argument"):
        flags = [item.value for item in call.args if isinstance(item, ast.Constant)]
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        long = next((flag for flag in flags if flag.startswith("--")), None)
        if long:
            name = given["dest"].value if "dest" in given else long[2:].replace("-", "_")
            yield name, _entry(given)


def _entry(given: dict[str, ast.expr]) -> dict:
    action = given["action"].value if "action" in given else ""
    kind, default = ACTIONS.get(action, (ast.unparse(given["type"]) if "type" in given else "str", None))
    if "default" in given:
        default = classes.literal(given["default"])
    if "nargs" in given and given["nargs"].value != "?":
        kind = f"list[{kind}]"
    entry = {"type": kind, "default": default}
    return entry | ({"choices": classes.literal(given["choices"])} if "choices" in given else {})


def _added_choices(feature: ast.ClassDef) -> Iterator[tuple[str, object]]:
    """Choices that a feature adds to another feature's argument."""
    for call in _calls(feature, "add_parser_argument_choices_value"):
        values = [item.value for item in [*call.args, *(keyword.value for keyword in call.keywords)] if _is_text(item)]
        if len(values) == 2:
            yield values[0].lstrip("-").replace("-", "_"), values[1]


def _read(feature: ast.ClassDef) -> Iterator[str]:
    """Attributes that a feature reads from the arguments, and the name that switches it on."""
    for node in ast.walk(feature):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("args", "global_args"):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and _is_text(node.args[1]):
            if ast.unparse(node.args[0]) in ("args", "global_args"):
                yield node.args[1].value
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("__init__"):
            names = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "feature_name")]
            yield from (name.value.replace("-", "_") for name in names if _is_text(name))


def _calls(feature: ast.ClassDef, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(feature):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
