"""The plain text that every match of a signature contains: what a log is searched for before the pattern is tried."""

import re
from functools import cache

# An element of a pattern without groups and alternatives: an escape, a class, another character; then its repetition.
ELEMENT = re.compile(r"(\\.|\[\^?\]?[^]]*\]|.)([*+?]\??|\{[^}]*\}\??)?", re.DOTALL)
SPECIAL = frozenset(".^$")


@cache
def longest(pattern: str) -> str:
    """The longest run of characters that stand in every match; "" where there is none."""
    runs = [""]
    for element, repetition in ELEMENT.findall(pattern):
        plain = _character(element)
        optional = repetition[:1] in ("*", "?") or repetition.startswith("{0")
        if plain and not optional:
            runs[-1] += plain
        if not plain or repetition:
            runs.append("")
    return max(runs, key=len)


def _character(element: str) -> str:
    """The one character that an element matches; "" where it matches several."""
    if element.startswith("\\"):
        return "" if element[1].isalnum() else element[1]
    return "" if element in SPECIAL or element.startswith("[") else element
