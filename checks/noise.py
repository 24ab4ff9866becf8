"""Lines that look like a fault and are none (noise.yaml)."""

import re
from functools import cache
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from checks.rows import Line, Row

TABLE = Path(__file__).with_name("noise.yaml")


class Noise(Row):
    """A row: a regular expression, why such a line can be ignored, where that was read, one such line."""

    line: Line
    why: Line
    source: Line
    example: Line


@cache
def load() -> tuple[Noise, ...]:
    """All rows. Raises pydantic's ValidationError for a row with a mistake."""
    return tuple(TypeAdapter(list[Noise]).validate_python(yaml.safe_load(TABLE.read_text(encoding="utf-8"))))


def is_noise(text: str) -> bool:
    """Whether a line can be ignored."""
    return any(pattern.search(text) for pattern in _patterns())


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(row.line) for row in load())
