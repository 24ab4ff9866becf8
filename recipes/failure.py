"""Why a run failed, in a line: what its log says (checks/triage/errors.py), and what its exit status means."""

from checks.triage.cleaning import clean
from checks.triage.errors import Cause, root_cause

__all__ = ["Cause", "root_cause", "status", "unprefixed"]


def unprefixed(line: str) -> str:
    """What a process said, without colours and the notes on which process it was."""
    return clean(line).text.strip()


def status(code: int) -> str:
    """What an exit status says in words."""
    if code == 137:
        return "killed by signal 9 (SIGKILL); most often the kernel's, for want of memory: see `dmesg`"
    if code > 128:
        return f"ended by signal {code - 128}"
    return f"exit code {code}"
