"""A facts document and typed access to it. What is not there, or is of another kind, is `Missing` with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from checks.facts import FORMAT
from errors import UserError

LIMIT = 64 << 20  # bytes of a document; real ones have some 30 kB


class Missing(Exception):
    """A fact that a check needs and that is unknown; the text says which and why."""


@dataclass(frozen=True)
class Facts:
    """A document, or a part of it. Paths are separated by slashes: `npu/smi/chips`."""

    value: object
    place: str = ""

    def at(self, path: str) -> Facts:
        """The part at a path. Missing where it is not there or could not be read."""
        found, place = self.value, self.place
        for name in path.split("/"):
            place = f"{place}/{name}" if place else name
            if not isinstance(found, Mapping) or name not in found:
                raise Missing(f"{place}: not among the facts")
            found = found[name]
            if isinstance(found, Mapping) and found.keys() == {"unknown"}:
                raise Missing(f"{place}: {found['unknown']}")
        return Facts(found, place)

    def has(self, path: str) -> bool:
        """Whether there is something at a path that could be read; null counts as nothing."""
        try:
            return self.at(path).value is not None
        except Missing:
            return False

    def absent(self, path: str) -> bool:
        """Whether there is nothing at a path. Missing where its subject was not read at all, or not in time."""
        self.at(path.partition("/")[0])
        why = self.why(path)
        if "not read within" in why or "did not end within" in why:
            raise Missing(why)
        return not self.has(path)

    def why(self, path: str) -> str:
        """Why there is nothing at a path; empty where there is."""
        try:
            self.at(path)
        except Missing as error:
            return str(error)
        return ""

    def text(self, path: str) -> str:
        return self._of(path, str, "a text")

    def number(self, path: str) -> float:
        return self._of(path, (int, float), "a number")

    def flag(self, path: str) -> bool:
        found = self.at(path)
        if not isinstance(found.value, bool):
            raise Missing(f"{found.place}: expected true or false, found {found.value!r}")
        return found.value

    def table(self, path: str) -> dict[str, Facts]:
        found = self.at(path)
        if not isinstance(found.value, Mapping):
            raise Missing(f"{found.place}: expected an object, found {type(found.value).__name__}")
        return {str(name): Facts(value, f"{found.place}/{name}") for name, value in found.value.items()}

    def rows(self, path: str) -> list[Facts]:
        found = self.at(path)
        if not isinstance(found.value, list):
            raise Missing(f"{found.place}: expected a list, found {type(found.value).__name__}")
        return [Facts(value, f"{found.place}/{index}") for index, value in enumerate(found.value)]

    def texts(self, path: str) -> list[str]:
        return [str(row.value) for row in self.rows(path)]

    def numbers(self, path: str) -> list[float]:
        found = [row.value for row in self.rows(path)]
        if not all(isinstance(one, int | float) for one in found):
            raise Missing(f"{self.place}/{path}: expected numbers, found {found!r}")
        return found

    def env(self, name: str) -> str | None:
        """An environment variable."""
        variables = self.at("environment").value
        value = variables.get(name) if isinstance(variables, Mapping) else None
        return None if value is None else str(value)

    def _of(self, path: str, kind: type | tuple[type, ...], expected: str):
        found = self.at(path)
        if not isinstance(found.value, kind) or isinstance(found.value, bool):
            raise Missing(f"{found.place}: expected {expected}, found {found.value!r}")
        return found.value


def read(path: str) -> Facts:
    """A document that `doctor --save` or `python3 -m checks.facts` wrote. UserError where it is none."""
    how = "save one with `invoke doctor --save FILE`"
    try:
        with open(path, "rb") as file:
            raw = file.read(LIMIT + 1)
    except OSError as error:
        found = "a folder" if Path(path).is_dir() else error.strerror
        raise UserError(f"--facts {path}: expected a facts document, found: {found}; {how}") from None
    if len(raw) > LIMIT:
        raise UserError(f"--facts {path}: expected at most {LIMIT >> 20} MiB, found more; {how}")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = "nothing in it" if not raw.strip() else str(error).partition(": line")[0][:100]
        raise UserError(f"--facts {path}: expected JSON, found: {reason}; {how}") from None
    return checked(document, f"--facts {path}")


def checked(document: object, name: str) -> Facts:
    """A document of this format. UserError for anything else."""
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT or isinstance(found, bool):
        shown = f"format {found!r}" if isinstance(document, dict) else type(document).__name__
        expected = f"expected a facts document of format {FORMAT}, found {shown:.60}"
        raise UserError(f"{name}: {expected}; collect it again with this version")
    return Facts(document)
