"""What the linter says of a recipe that has run, from its run directory."""

import json
from pathlib import Path

from omegaconf import OmegaConf

from checks.findings import Finding
from errors import UserError
from recipes import rundir
from recipes.compose import DEFAULT, verl_defaults
from recipes.lint import lint_facts
from recipes.lint.facts import gather


def findings_of_run(folder: Path) -> list[Finding]:
    """The linter's findings; none where the run's recipe cannot be judged."""
    config = OmegaConf.load(folder / rundir.CONFIG)
    matrix = _matrix(folder)
    try:
        return lint_facts(gather(config, matrix, verl_defaults(matrix)))
    except UserError:
        return []


def _matrix(folder: Path) -> str:
    try:
        return json.loads((folder / rundir.MATRIX).read_text())["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT
