"""Judges a case: every check once, each after those that it builds on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from checks.doctor.check import Case, Check, Fault, Skip
from checks.doctor.document import Missing
from checks.words import Text

Status = Literal["pass", "warn", "fail", "skip", "unknown"]
STATUSES: tuple[Status, ...] = ("fail", "warn", "unknown", "skip", "pass")


@dataclass(frozen=True)
class Result:
    """What a check had to say."""

    check: Check
    status: Status
    faults: tuple[Fault, ...] = ()
    reason: Text | None = None  # of skip and unknown
    because: str = ""  # of skip: the check that did not pass and on which this one builds


def judge(case: Case, checks: Iterable[Check]) -> list[Result]:
    """The results of all checks that the case's matrix has, in their order."""
    wanted = {one.id: one for one in checks if case.matrix.name in one.matrices}
    results: dict[str, Result] = {}
    for one in wanted.values():
        _judge(one, case, wanted, results)
    return [results[name] for name in wanted]


def _judge(one: Check, case: Case, wanted: Mapping[str, Check], results: dict[str, Result]) -> Result:
    if one.id not in results:
        earlier = [_judge(wanted[name], case, wanted, results) for name in one.after if name in wanted]
        results[one.id] = _blocked(one, earlier) or _result(one, case)
    return results[one.id]


def failed(results: Iterable[Result]) -> bool:
    """Whether something must be fixed."""
    return any(result.status == "fail" for result in results)


def _blocked(one: Check, earlier: Iterable[Result]) -> Result | None:
    """Skipped, where something that it builds on did not pass: the first cause is reported once."""
    for result in earlier:
        if result.status in ("fail", "unknown") or result.because:
            cause = result.because or result.check.id
            return Result(one, "skip", reason=Text(f"needs {cause}", f"依赖 {cause}"), because=cause)
    return None


def _result(one: Check, case: Case) -> Result:
    try:
        faults = tuple(one.body(case))
    except Missing as error:
        return Result(one, "unknown", reason=Text(str(error), str(error)))
    except Skip as error:
        return Result(one, "skip", reason=error.reason)
    return Result(one, one.level if faults else "pass", faults)
