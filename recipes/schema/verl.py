"""verl's configuration for Megatron: the keys its YAML files compose to and the fields its dataclasses take."""

import ast
import tempfile
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from recipes.schema import classes

COMPONENT = "verl"
FOLDER = "verl"
CONFIGS = "verl/trainer/config"
PARENT = "ppo_megatron_trainer"
TARGET = "_target_"


def tables(tree: dict[str, str]) -> dict[str, dict]:
    """The composed defaults, dotted; then what a dataclass takes beyond them."""
    configs = {path: text for path, text in tree.items() if path.startswith(CONFIGS + "/") and path.endswith(".yaml")}
    composed = _compose(configs)
    table: dict[str, dict] = {}
    _walk(composed, "", None, _known(tree), table)
    return {"config": dict(sorted(table.items()))}


def _compose(configs: dict[str, str]) -> dict:
    """The trainer's config with interpolations as they are written."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in configs.items():
            file = Path(folder) / Path(path).relative_to(CONFIGS)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        GlobalHydra.instance().clear()
        with initialize_config_dir(folder, version_base=None):
            return OmegaConf.to_container(compose(PARENT), resolve=False)


def _known(tree: dict[str, str]) -> dict[str, classes.Class]:
    """The classes that `_target_` can name: those of modules with dataclasses."""
    return classes.classes(
        text for path, text in tree.items() if path.endswith(".py") and "@dataclass" in text and "config" in path
    )


def _walk(node: dict, prefix: str, owner: str | None, known: dict[str, classes.Class], table: dict) -> None:
    """Adds the keys below `prefix`; `owner` is the dataclass that verl turns this node into, where it does."""
    owner = str(node[TARGET]).split(".")[-1] if TARGET in node else owner
    declared = classes.all_fields(owner, known) if owner else {}
    for name, value in node.items():
        annotation = declared.get(name, (None, None))[0]
        if isinstance(value, dict) and value:
            _walk(value, f"{prefix}{name}.", _class_name(annotation), known, table)
        else:
            table[prefix + name] = {"type": ast.unparse(annotation) if annotation else kind(value), "default": value}
    for name in declared.keys() - node.keys():
        if not name.startswith("_"):
            annotation, default = declared[name]
            entry = {"type": ast.unparse(annotation), "default": classes.value(default), "listed": False}
            table[prefix + name] = entry


def _class_name(annotation: ast.expr | None) -> str | None:
    """The dataclass in an annotation such as `Optional[OptimizerConfig]`; nothing for plain types."""
    names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)] if annotation else []
    return next((name for name in names if name not in ("Optional", "Union", "dict", "Dict", "Any", "list")), None)


def kind(value: object) -> str:
    """The type that a default shows; nothing for null and for an interpolation."""
    if value is None or (isinstance(value, str) and "${" in value):
        return ""
    return type(value).__name__
