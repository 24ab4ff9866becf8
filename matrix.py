"""The version matrices of matrix.toml, typed and checked.

`load(name)` gives one matrix with what it inherits filled in. A mistake in the file becomes one line that names the
file, the line and the key, what was expected and what was found.
"""

import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from errors import UserError

MATRIX_FILE = Path(__file__).resolve().parent / "matrix.toml"


def _day(value: str) -> str:
    """A date that the calendar has."""
    try:
        date.fromisoformat(value)
    except ValueError:
        raise ValueError("expected a day of the calendar") from None
    return value


Text = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Url = Annotated[str, StringConstraints(pattern=r"^https://\S+$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")]
Date = Annotated[str, StringConstraints(pattern=r"^20\d\d-\d\d-\d\d$"), AfterValidator(_day)]
Asked = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[^\]]+\])?[^\s;@]*$")]
Machine = Literal["x86_64", "aarch64"]
Install = Literal["vendor", "git", "index", "sdist", "torch", "absent"]

FROM_INDEX = ("index", "sdist")

# What a reader is told instead of the pattern that a value broke.
_EXPECTED = {
    r"^[0-9a-f]{40}$": "a full commit, 40 hexadecimal digits",
    r"^[0-9a-f]{64}$": "a sha256, 64 hexadecimal digits",
    r"^https://\S+$": "an https:// address",
    r"^[0-9][0-9A-Za-z.+_-]*$": "one exact version, such as 0.11.0",
    r"^20\d\d-\d\d-\d\d$": "a date, such as 2025-11-15",
    r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[^\]]+\])?[^\s;@]*$": "a requirement, such as numpy<2",
    r"\S": "a text that is not empty",
}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Component(_Table):
    """A part of the stack: where its source lives, which state of it, how it gets here, who says so."""

    repository: Url
    ref: Text
    install: Install
    source: Text
    commit: Commit | None = None
    version: Version | None = None
    package: Text | None = None
    why: Text | None = None
    requires: list[Asked] = []

    @model_validator(mode="after")
    def _names_what_it_installs(self) -> Self:
        if self.install == "git" and not self.commit:
            raise ValueError("install = 'git' needs a commit")
        if self.install in ("vendor", "torch", *FROM_INDEX) and not self.version:
            raise ValueError(f"install = '{self.install}' needs a version")
        if self.install == "absent" and not self.why:
            raise ValueError("install = 'absent' needs a why")
        return self


class Requirement(_Table):
    """A further package from the index, with the reason for it."""

    version: Version
    why: Text
    package: Text | None = None


class Build(_Table):
    """A build that the package index does not have, with the hashes of its file and who says so."""

    version: Version
    sha256: Annotated[list[Sha256], Field(min_length=1)]
    source: Text


class Lock(_Table):
    """How the lock of a matrix is resolved; override, exclude and sdist map names to reasons."""

    cutoff: Date
    machines: Annotated[list[Machine], Field(min_length=1)]
    override: dict[str, Text] = {}
    exclude: dict[str, Text] = {}
    sdist: dict[str, Text] = {}
    elsewhere: dict[Machine, dict[str, Build]] = {}
    torch: dict[Machine, list[Sha256]] = {}


class Matrix(_Table):
    """A set of versions that belong together."""

    name: str
    title: Text
    components: Annotated[dict[str, Component], Field(min_length=1)]
    requirements: dict[str, Requirement] = {}
    lock: Lock | None = None

    def component(self, name: str) -> Component:
        """One component by its name. UserError where the matrix has none of that name."""
        if name not in self.components:
            raise UserError(f"matrix {self.name} has no component {name}; it has {', '.join(self.components)}")
        return self.components[name]


class _Written(_Table):
    """A matrix as the file has it, before `extends` is resolved."""

    title: Text
    extends: str | None = None
    components: dict[str, Component] = {}
    requirements: dict[str, Requirement] = {}
    lock: Lock | None = None


def names(path: Path = MATRIX_FILE) -> list[str]:
    """The names of all matrices, in the order of the file."""
    return list(_read(path)[1])


def load(name: str, path: Path = MATRIX_FILE) -> Matrix:
    """The matrix of that name.

    The whole file is checked, other matrices too. UserError for a name that is not there or a file with a mistake.
    """
    text, tables = _read(path)
    written = {matrix: _check(path, text, matrix, table) for matrix, table in tables.items()}
    if name not in written:
        raise UserError(f"unknown matrix '{name}': {path.name} has {', '.join(written)}")
    for matrix, one in written.items():
        if one.extends is not None and (one.extends not in written or written[one.extends].extends is not None):
            bases = [other for other in written if written[other].extends is None and other != matrix]
            raise _mistake(path, text, (matrix, "extends"), f"expected one of {', '.join(bases)}", one.extends)
    one = written[name]
    base = written[one.extends] if one.extends else one
    return Matrix(
        name=name,
        title=one.title,
        components={**base.components, **one.components},
        requirements={**base.requirements, **one.requirements},
        lock=one.lock or base.lock,
    )


def _read(path: Path) -> tuple[str, dict]:
    """The file's text and its top-level tables."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); restore it with `git checkout {path.name}`") from None
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        key = _key_at(text, line) or _line(text, line)
        reason = re.sub(r"\s*\(at [^)]*\)$", "", str(error))
        raise UserError(f"{path.name}:{line}: {key}: not TOML: {reason}") from None


def _check(path: Path, text: str, matrix: str, table: object) -> _Written:
    try:
        return _Written.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        raise _mistake(path, text, (matrix, *first["loc"]), _expected(first), first.get("input")) from None


def _expected(error: dict) -> str:
    """What pydantic wanted, in words for the person who edits the file."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "missing"
    if kind == "string_pattern_mismatch":
        return f"expected {_EXPECTED[context['pattern']]}"
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "expected a table"
    if kind == "string_type":
        return "expected a text"
    if kind == "list_type":
        return "expected a list"
    return error["msg"][0].lower() + error["msg"][1:]


def _mistake(path: Path, text: str, key: tuple, expected: str, found: object) -> UserError:
    """The one-line error at the line where `key` (or the nearest table around it) is written."""
    # pydantic appends "[key]" where the name of an entry itself is wrong
    keys = tuple(str(part) for part in key if part != "[key]")
    shown = "" if isinstance(found, dict) or found is None else f", found {found!r}"
    return UserError(f"{path.name}:{_line_of(text, keys)}: {'.'.join(keys)}: {expected}{shown}")


_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_ASSIGNMENT = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=(?!=)")


def _keys_by_line(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """(line, full key) of each table header and assignment; enough of TOML for a file without multi-line strings."""
    keys, table = [], ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _split(header[1])
            keys.append((number, table))
        elif assignment := _ASSIGNMENT.match(line):
            keys.append((number, table + _split(assignment[1])))
    return keys


def _split(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _line_of(text: str, key: tuple[str, ...]) -> int:
    """The line of `key`, else the first line of the innermost table around it that is written, else 1."""
    best, length = 1, 0
    for number, written in _keys_by_line(text):
        common = 0
        while common < min(len(written), len(key)) and written[common] == key[common]:
            common += 1
        if common > length:
            best, length = number, common
    return best


def _key_at(text: str, line: int) -> str | None:
    """The key that is written at `line`."""
    return next((".".join(key) for number, key in _keys_by_line(text) if number == line), None)


def _line(text: str, line: int) -> str:
    """The start of a line that writes no key."""
    lines = text.splitlines()
    return lines[line - 1].strip()[:40] if line <= len(lines) else "end"
