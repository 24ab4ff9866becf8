"""What would stop a run, looked for before it is started: files, machine, sizes. Nothing is written or imported from
the stack, and all findings come in one message.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from omegaconf import DictConfig

from errors import UserError
from recipes.preflight import datasets, machine, models, sizes
from recipes.preflight.datasets import training_rows

__all__ = ["check", "findings", "training_rows"]

CHECKS: tuple[Callable[[DictConfig], Iterator[str]], ...] = (
    models.weights,
    models.tokenizer,
    models.megatron,
    datasets.files,
    datasets.reward,
    sizes.parallel,
    sizes.batches,
    machine.devices,
    machine.ports,
    machine.sockets,
    machine.console,
)


def check(config: DictConfig, run: Path) -> None:
    """Raises one UserError with everything that keeps this recipe from running into the folder `run`."""
    found = findings(config, run)
    if found:
        raise UserError("\n".join([f"{len(found)} finding(s) before the start:", *found]), code=1)


def findings(config: DictConfig, run: Path) -> list[str]:
    """A line for each finding: what was expected, what was found, what to do."""
    found = [finding for one in CHECKS for finding in one(config)]
    return [f"- {finding}" for finding in [*found, *machine.disk(run, models.bytes_of(config), config)]]
