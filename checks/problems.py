"""The table of known problems (problems.yaml): rows by id, and the row whose signature a line of a log matches."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

TABLE = Path(__file__).with_name("problems.yaml")
Line = Annotated[str, StringConstraints(min_length=1)]


class Text(BaseModel):
    """A text in both languages."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    en: Line
    zh: Line


class Problem(BaseModel):
    """A row: what goes wrong, why, what to do, and where it was seen or read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: Annotated[str, StringConstraints(pattern=r"^[A-Z]\d+$")]
    matrices: Annotated[list[str], Field(min_length=1)]
    title: Text
    cause: Text
    remedy: Text
    source: Line
    signatures: list[Line] = []


@cache
def load() -> dict[str, Problem]:
    """All rows by id. Raises pydantic's ValidationError for a row with a mistake."""
    rows = [Problem.model_validate(row) for row in yaml.safe_load(TABLE.read_text(encoding="utf-8"))]
    return {row.id: row for row in rows}


def matching(lines: Iterable[str]) -> tuple[Problem, str] | None:
    """The problem whose signature stands in the lines first, and that line."""
    signatures = _signatures()
    for line in lines:
        for pattern, problem in signatures:
            if pattern.search(line):
                return problem, line.strip()
    return None


@cache
def _signatures() -> list[tuple[re.Pattern, Problem]]:
    return [(re.compile(text), problem) for problem in load().values() for text in problem.signatures]
