"""The one error of a log that most likely ended the run, among those that only follow from it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from checks.triage.cleaning import Line, clean

EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Died))(?::\s?(?P<text>.*))?$"
)
FATAL = re.compile(
    r"^(?:Fatal Python error: .*|\*\*\* SIG[A-Z]+ received.*|terminate called .*|.*: error while loading shared.*)$"
)
# What such lines end in or begin with: a log is searched for these first.
MARKS = ("Error", "Exception", "Interrupt", "Exit", "Timeout", "Died")
FATAL_MARKS = ("Fatal Python error", "*** SIG", "terminate called", "error while loading shared")

# Says that something else went wrong before: in another process, or below this one.
WRAPPERS = {
    "RayTaskError",
    "RayActorError",
    "ActorDiedError",
    "ActorUnavailableError",
    "WorkerCrashedError",
    "OwnerDiedError",
    "LocalRayletDiedError",
    "ObjectLostError",
    "EngineDeadError",
    "KeyboardInterrupt",
    "SystemExit",
}
CONSEQUENCE = re.compile(
    r"connection (?:closed|reset|refused)|broken pipe|socket timeout|closed by (?:remote )?peer|"
    r"process group.*(?:terminated|destroyed)|timed out waiting|Application timeout caused pair closure",
    re.IGNORECASE,
)
HARMLESS = re.compile(r"No module named '(?:acl|pynvml|pyamdsmi|amdsmi)'")  # Ray asks each kind of accelerator
WRAPPED = re.compile(r"^ray\.exceptions\.\w+\(\w+\): ")


@dataclass(frozen=True)
class Cause:
    """A line of the log: what it says, which process said it, and where it stands (counted from 1)."""

    text: str
    source: str
    line: int
    time: str = ""  # HH:MM:SS, where the line has one


class Errors:
    """Takes in a log's errors one by one and keeps those that may be the cause."""

    def __init__(self) -> None:
        self._last: Cause | None = None
        self._last_of_driver: Cause | None = None
        self._original: Cause | None = None

    def add(self, line: Line, number: int) -> bool:
        """Takes in a line; whether it is an error."""
        if not is_error(line.text):
            return False
        cause = Cause(line.text, line.source, number, line.time)
        self._last = cause
        if not line.source:
            self._last_of_driver = cause
        if self._original is None and not is_consequence(cause.text):
            self._original = cause
        return True

    @property
    def cause(self) -> Cause | None:
        """The driver's last exception, where it is one of its own; where it only reports that something died or that a
        connection broke, the first exception that does not."""
        last = self._last_of_driver or self._last
        if last is None or not is_consequence(last.text):
            return last
        return self._original or last


def root_cause(lines: Iterable[str]) -> Cause | None:
    """The error that most likely ended the run."""
    errors = Errors()
    for number, line in enumerate(lines, 1):
        errors.add(clean(line), number)
    return errors.cause


def is_error(text: str) -> bool:
    """Whether a line without its prefixes is the last one of a traceback, or a crash."""
    if text.startswith((" ", "\t")) or WRAPPED.match(text) or HARMLESS.search(text):
        return False
    return bool(EXCEPTION.match(text) or FATAL.match(text))


def is_consequence(text: str) -> bool:
    """Whether an error says that another one came before."""
    found = EXCEPTION.match(text)
    return bool(CONSEQUENCE.search(text) or (found and found["name"] in WRAPPERS))
