"""The recipes of this checkout: what there is, what one composes to, how two differ."""

import json
from collections.abc import Iterator

from omegaconf import OmegaConf

from recipes import keys
from recipes.compose import FOLDER, compose, matrices, names, verl_defaults


def show_all(as_json: bool = False) -> int:
    """Prints each recipe with its matrices, hardware, nodes and purpose."""
    rows = [_row(name) for name in names()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "matrix", "hardware", "nodes", "purpose", box=None)
    for row in rows:
        table.add_row(row["recipe"], ", ".join(row["matrices"]), row["hardware"], str(row["nodes"]), row["purpose"])
    Console().print(table)
    return 0


def show(name: str, matrix: str | None = None, changed: bool = False) -> int:
    """Prints the composed configuration as YAML, as verl will read it; with `changed` only what differs from verl's."""
    recipe = compose(name, matrix=matrix)
    if changed:
        defaults = keys.leaves(verl_defaults(recipe.matrix))
        own = {key: value for key, value in keys.leaves(recipe.config).items() if defaults.get(key, keys) != value}
        width = max(map(len, own))
        print("\n".join(f"{key:<{width}}  {_shown(value)}" for key, value in sorted(own.items(), key=_launch_first)))
    else:
        print(OmegaConf.to_yaml(recipe.config), end="")
    return 0


def show_difference(first: str, second: str, matrix: str | None = None) -> int:
    """Prints the keys in which two recipes differ."""
    lines = list(difference(first, second, matrix))
    print("\n".join(lines) if lines else f"{first} and {second} compose to the same")
    return 0


def difference(first: str, second: str, matrix: str | None = None) -> Iterator[str]:
    """One line for each key that has another value in the second recipe, or is in one of the two only."""
    old, new = (keys.leaves(compose(name, matrix=matrix).config) for name in (first, second))
    for key, before, now in keys.changes(old, new):
        if now is keys.ABSENT:
            yield f"- {key}={_shown(before)}"
        elif before is keys.ABSENT:
            yield f"+ {key}={_shown(now)}"
        else:
            yield f"  {key}: {_shown(before)} -> {_shown(now)}"


def _row(name: str) -> dict:
    """What a recipe is: the first sentence of its file, and what its `launch:` composes to."""
    config = compose(name).config
    comments = []
    for line in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# "))
    purpose = " ".join(comments).partition(". ")[0].rstrip(".")
    return {
        "recipe": name,
        "matrices": matrices(name),
        "hardware": str(OmegaConf.select(config, "launch.hardware", default="NPU")),
        "nodes": OmegaConf.select(config, "launch.nodes"),
        "purpose": purpose,
    }


def _launch_first(entry: tuple[str, object]) -> tuple[bool, str]:
    return not entry[0].startswith("launch."), entry[0]


def _shown(value: object) -> str:
    """A value as YAML writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
