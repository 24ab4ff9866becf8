"""What would stop a run, looked for before it is started: files, machine, sizes. Nothing is written or imported from
the stack, and all findings come in one message.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from errors import UserError
from recipes.compose import Recipe
from recipes.preflight import datasets, machine, models, sizes
from recipes.preflight.datasets import training_rows

__all__ = ["check", "findings", "training_rows"]

CHECKS: tuple[Callable[[Recipe], Iterator[str]], ...] = (
    models.weights,
    models.tokenizer,
    models.megatron,
    datasets.files,
    datasets.reward,
    sizes.fitting,
    machine.devices,
    machine.ports,
    machine.sockets,
    machine.console,
)


def check(recipe: Recipe, run: Path) -> None:
    """Raises one UserError with everything that keeps the recipe from running into the folder `run`."""
    found = findings(recipe, run)
    if found:
        raise UserError("\n".join([f"{len(found)} finding(s) before the start:", *found]), code=1)


def findings(recipe: Recipe, run: Path) -> list[str]:
    """A line for each finding: what was expected, what was found, what to do."""
    found = [finding for one in CHECKS for finding in one(recipe)]
    found += machine.disk(run, models.bytes_of(recipe.config), recipe.config)
    return [f"- {finding}" for finding in found]
