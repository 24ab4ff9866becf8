"""peers.yaml: what is run and how, and why something does not pass; and the judgement of an outcome by it."""

from __future__ import annotations

import dataclasses
import fnmatch
from pathlib import Path

import yaml

from emulator.peers.suites import BROKEN, Outcome, Setting, Suite

KINDS = {
    "hardware": "only a device can pass it",
    "upstream": "a fault of the peer",
    "scope": "no recipe uses it",
    "package": "needs a package or a model that is not installed here",
}
REASON_KEYS = {"file", "tests", "kind", "why", "evidence"}


class PeersError(RuntimeError):
    """The job cannot be done; the message says what was expected, what was found and what to do."""


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why tests of the files that `file` selects do not pass. evidence: where upstream that can be read."""

    file: str
    tests: str
    kind: str
    why: str
    evidence: str

    def covers(self, suite: Suite, file: str) -> bool:
        """Whether the row speaks of the file."""
        return fnmatch.fnmatchcase(f"{suite.tree}/{file}", self.file)


@dataclasses.dataclass(frozen=True)
class Known:
    """All that peers.yaml says. settings: pattern of files -> Setting; packages: requirements file of the tests."""

    packages: Path | None
    suites: list[Suite]
    settings: dict[str, Setting]
    reasons: list[Reason]

    def setting(self, suite: Suite, file: str) -> Setting:
        """How the file is run; the first pattern that selects it holds."""
        matching = (s for pattern, s in self.settings.items() if fnmatch.fnmatchcase(f"{suite.tree}/{file}", pattern))
        return next(matching, Setting())

    def judge(self, suite: Suite, outcome: Outcome) -> Judgement:
        """The rows that explain what did not pass, what none explains, and the rows that explain nothing any more."""
        rows = [row for row in self.reasons if row.covers(suite, outcome.file)]
        open_ = {name for name, (result, _) in outcome.tests.items() if result in (*BROKEN, "left out")}
        skipped = {name for name, (result, _) in outcome.tests.items() if result == "skipped"}
        used = {row: set(outcome.selected(row.tests)) & (open_ | skipped) for row in rows}
        explained = set().union(*used.values()) if used else set()
        return Judgement(
            explained={row: names for row, names in used.items() if names},
            unexplained=sorted(open_ - explained),
            skipped=sorted(skipped - explained),
            stale=[row for row, names in used.items() if not names and outcome.is_whole],
        )


@dataclasses.dataclass(frozen=True)
class Judgement:
    """explained: row -> tests; unexplained: tests; skipped: tests in upstream's own words; stale: rows."""

    explained: dict[Reason, set[str]]
    unexplained: list[str]
    skipped: list[str]
    stale: list[Reason]

    @property
    def is_good(self) -> bool:
        return not self.unexplained and not self.stale


def load(path: Path) -> Known:
    """Raises PeersError for a file that cannot be read or says what is not understood."""
    try:
        text = yaml.safe_load(path.read_text())
        packages = path.parent / text["packages"] if "packages" in text else None
        suites = [_suite(name, values) for name, values in text["suites"].items()]
        settings = {pattern: Setting(**values) for pattern, values in (text.get("settings") or {}).items()}
        reasons = [_reason(values) for values in text.get("reasons") or []]
    except (OSError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise PeersError(
            f"{path}: expected suites, settings and reasons as in emulator/peers.yaml; found: {error}"
        ) from None
    return Known(packages, suites, settings, reasons)


def _suite(name: str, values: dict) -> Suite:
    return Suite(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _reason(values: dict) -> Reason:
    row = {"tests": "*", **values}
    if set(row) != REASON_KEYS or row["kind"] not in KINDS:
        raise TypeError(f"a row with {row}; it has the keys {sorted(REASON_KEYS)}, and kind is one of {sorted(KINDS)}")
    return Reason(**row)
