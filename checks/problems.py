"""The table of known problems (problems.yaml): rows by id, and the row whose signature a line of a log matches."""

import re
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, StringConstraints

from checks import literal
from checks.noise import is_noise
from checks.rows import Line, Row, Text
from errors import UserError

TABLE = Path(__file__).with_name("problems.yaml")
# cause        what its signature says is why a run failed or goes wrong
# generic      a fault that many mistakes end in: says what to collect next
# consequence  what other ranks and processes print after the first failure
# warning      costs speed or memory, or does not do what it says; the run goes on
Kind = Literal["cause", "generic", "consequence", "warning"]
KINDS: tuple[Kind, ...] = ("cause", "generic", "consequence", "warning")

Settings = Annotated[dict[str, bool | int | float | str], Field(default_factory=dict)]


class Signature(Row):
    """What a line of a log looks like when this problem is there.

    line: a regular expression that is searched in it. frame: another one that a line of the traceback above it
    matches, for errors that many places raise.
    """

    line: Line
    frame: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.line)

    @cached_property
    def literal(self) -> str:
        """Stands in every line that matches."""
        return literal.longest(self.line)

    @cached_property
    def frame_pattern(self) -> re.Pattern[str]:
        return re.compile(self.frame)


class Problem(Row):
    """A row: what goes wrong, why, what to do, where it was seen or read, and what finds it here."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Z]\d+$")]
    kind: Kind = "cause"
    matrices: Annotated[tuple[Literal["performance", "commercial", "cpu"], ...], Field(min_length=1)]
    title: Text
    cause: Text
    remedy: Text
    introduced: str = ""
    fixed: str = ""
    applies_if: tuple[Line, ...] = ()  # conditions on the recipe, KEY OP VALUE: all must hold
    settings: Settings  # the keys that remove it, for `--set`
    source: Line
    checks: tuple[Line, ...] = ()  # of `invoke doctor`
    rules: tuple[Line, ...] = ()  # of `invoke lint`
    patches: tuple[Line, ...] = ()
    metrics: tuple[Line, ...] = ()  # of `invoke triage`, over a run's steps
    signatures: tuple[Signature, ...] = ()


@cache
def load() -> dict[str, Problem]:
    """All rows by id. Raises pydantic's ValidationError for a row with a mistake."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = [Problem.model_validate(_expanded(row)) for row in yaml.load(TABLE.read_text(encoding="utf-8"), loader)]
    return {row.id: row for row in rows}


def get(problem: str) -> Problem:
    """The row of that id, in capitals or not. UserError where there is none."""
    row = load().get(problem.upper())
    if row is None:
        raise UserError(f"{problem}: expected a problem's id, as `invoke problems` lists them, found none of that name")
    return row


def matching(lines: Iterable[str]) -> tuple[Problem, str] | None:
    """The problem that is the cause of what the lines say, and its first line; a generic one where there is none."""
    generic = None
    for line in lines:
        for signature, problem in signatures():
            if signature.literal in line and not signature.frame and signature.pattern.search(line):
                if is_noise(line):
                    break
                if problem.kind == "cause":
                    return problem, line.strip()
                if problem.kind == "generic":
                    generic = generic or (problem, line.strip())
    return generic


@cache
def signatures() -> list[tuple[Signature, Problem]]:
    """Every signature with its problem, in the order of the table."""
    return [(signature, problem) for problem in load().values() for signature in problem.signatures]


def _expanded(row: dict) -> dict:
    """A signature without a frame may stand as its text alone."""
    texts = row.get("signatures", [])
    return {**row, "signatures": [{"line": one} if isinstance(one, str) else one for one in texts]}
