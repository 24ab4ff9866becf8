"""What the linter says of a recipe that has run, from its run directory."""

import json
from pathlib import Path

from omegaconf import OmegaConf

from errors import UserError
from recipes import rundir
from recipes.compose import DEFAULT, verl_defaults
from recipes.lint import lint_facts
from recipes.lint.facts import gather


def by_problem(folder: Path) -> dict[str, list[str]]:
    """Problem → the linter's messages with their remedies; nothing where the run's recipe cannot be judged."""
    config = OmegaConf.load(folder / rundir.CONFIG)
    matrix = _matrix(folder)
    try:
        findings = lint_facts(gather(config, matrix, verl_defaults(matrix)))
    except UserError:
        return {}
    said: dict[str, list[str]] = {}
    for finding in findings:
        said.setdefault(finding.problem, []).append(f"{finding.message} → {finding.remedy}  [{finding.rule}]")
    return said


def _matrix(folder: Path) -> str:
    try:
        return json.loads((folder / rundir.MATRIX).read_text())["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT
