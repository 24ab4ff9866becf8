"""Why a run failed: the one line of its log that says so, instead of the tracebacks round it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from recipes.metrics import plain

PREFIX = re.compile(r"^\((?P<source>[^)]*pid=[^)]*)\)\s?")
REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Died))(?::\s?(?P<text>.*))?$"
)
FATAL = re.compile(
    r"^(?:Fatal Python error: .*|\*\*\* SIG[A-Z]+ received.*|terminate called .*|.*: error while loading shared.*)$"
)
WRAPPED = re.compile(r"^ray\.exceptions\.\w+\(\w+\): ")

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


@dataclass(frozen=True)
class Cause:
    """A line of the log: what it says, which process said it, and where it stands (counted from 1)."""

    text: str
    source: str
    line: int


def root_cause(lines: Iterable[str]) -> Cause | None:
    """The error that most likely ended the run.

    The driver's last exception, where it is one of its own; where it only reports that something died or that a
    connection broke, the first exception before it that does not.
    """
    errors = [cause for number, line in enumerate(lines, 1) if (cause := _error(line, number))]
    if not errors:
        return None
    driver = [cause for cause in errors if not cause.source]
    last = driver[-1] if driver else errors[-1]
    if not _is_consequence(last):
        return last
    original = [cause for cause in errors if not _is_consequence(cause)]
    return original[0] if original else last


def unprefixed(line: str) -> str:
    """What a process said, without colours and Ray's note on which process it was."""
    return REPEATED.sub("", PREFIX.sub("", plain(line))).strip()


def status(code: int) -> str:
    """What an exit status says in words."""
    if code == 137:
        return "killed by signal 9 (SIGKILL); most often the kernel's, for want of memory: see `dmesg`"
    if code > 128:
        return f"ended by signal {code - 128}"
    return f"exit code {code}"


def _error(line: str, number: int) -> Cause | None:
    text = plain(line)
    found = PREFIX.match(text)
    source = found["source"] if found else ""
    text = REPEATED.sub("", PREFIX.sub("", text)).rstrip()
    if text.startswith((" ", "\t")) or WRAPPED.match(text) or HARMLESS.search(text):
        return None
    if EXCEPTION.match(text) or FATAL.match(text):
        return Cause(text, source, number)
    return None


def _is_consequence(cause: Cause) -> bool:
    found = EXCEPTION.match(cause.text)
    return bool(CONSEQUENCE.search(cause.text) or (found and found["name"] in WRAPPERS))
