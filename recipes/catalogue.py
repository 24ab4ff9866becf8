"""The recipes of this checkout: what there is, what one composes to, how two differ."""

import json
from collections.abc import Iterator

from omegaconf import OmegaConf

from recipes import keys
from recipes.compose import FOLDER, compose, names


def show_all(as_json: bool = False) -> int:
    """Prints each recipe with its matrix, hardware and purpose."""
    rows = [_row(name) for name in names()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "matrix", "hardware", "purpose", box=None)
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
    return 0


def show(name: str) -> int:
    """Prints the composed configuration as YAML, as verl will read it."""
    print(OmegaConf.to_yaml(compose(name).config), end="")
    return 0


def show_difference(first: str, second: str) -> int:
    """Prints the keys in which two recipes differ."""
    lines = list(difference(first, second))
    print("\n".join(lines) if lines else f"{first} and {second} compose to the same")
    return 0


def difference(first: str, second: str) -> Iterator[str]:
    """One line for each key that has another value in the second recipe, or is in one of the two only."""
    old, new = (keys.leaves(compose(name).config) for name in (first, second))
    for key, before, now in keys.changes(old, new):
        if now is keys.ABSENT:
            yield f"- {key}={before}"
        elif before is keys.ABSENT:
            yield f"+ {key}={now}"
        else:
            yield f"  {key}: {before} -> {now}"


def _row(name: str) -> dict[str, str]:
    """What a recipe's own file says, without composing it."""
    file = FOLDER / f"{name}.yaml"
    launch = OmegaConf.load(file).get("launch") or {}
    comments = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# "))
    purpose = " ".join(comments).partition(". ")[0].rstrip(".")
    return {
        "recipe": name,
        "matrix": str(launch.get("matrix", "performance")),
        "hardware": str(launch.get("hardware", "NPU")),
        "purpose": purpose,
    }
