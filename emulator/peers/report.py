"""The table: one file a line, and beside it why something does not pass."""

import json
from collections import Counter

from emulator.peers.known import Judgement
from emulator.peers.suites import BROKEN, Outcome

HEAD = f"{'file':<84} {'passed':>6} {'failed':>6} {'skipped':>7} {'time':>6}  reason"
WIDTH = 160


def lines(outcome: Outcome, judgement: Judgement) -> list[str]:
    """The file's line and one more for each further reason."""
    first = (
        f"{outcome.suite + ' ' + outcome.file:<84} {outcome.count('passed'):>6} {outcome.count(*BROKEN):>6} "
        f"{outcome.count('skipped', 'left out'):>7} {outcome.seconds:>4.0f} s"
    )
    reasons = [text[:WIDTH] for text in _reasons(outcome, judgement)] or [""]
    return [f"{first}  {reasons[0]}".rstrip(), *(f"{'':<{len(first)}}  {text}" for text in reasons[1:])]


def _reasons(outcome: Outcome, judgement: Judgement) -> list[str]:
    texts = [f"UNEXPLAINED {_said(outcome, name)}" for name in judgement.unexplained]
    texts += [f"STALE       {row.tests}: passes; take its row out of peers.yaml" for row in judgement.stale]
    texts += [f"{row.kind} × {len(names)}: {row.why} ({row.evidence})" for row, names in judgement.explained.items()]
    said = Counter(outcome.tests[name][1] for name in judgement.skipped)
    return texts + [f"skipped by the peer × {number}: {' '.join(words.split())}" for words, number in said.items()]


def _said(outcome: Outcome, name: str) -> str:
    result, message = outcome.tests[name]
    return f"{name}: {result}: {' '.join(message.split())}"


def total(name: str, found: list[tuple[Outcome, Judgement]]) -> str:
    """One line for a peer."""
    counted = {key: sum(outcome.count(*which) for outcome, _ in found) for key, which in _COUNTED.items()}
    unexplained = sum(len(judgement.unexplained) for _, judgement in found)
    stale = sum(len(judgement.stale) for _, judgement in found)
    counts = ", ".join(f"{number} {key}" for key, number in counted.items())
    return f"{name}: {len(found)} files, tests: {counts}; {unexplained} without a reason, {stale} stale rows"


_COUNTED = {"passed": ("passed",), "failed": BROKEN, "skipped": ("skipped",), "left out": ("left out",)}


def document(found: list[tuple[Outcome, Judgement]]) -> str:
    """The same as one JSON document."""
    return json.dumps([_row(outcome, judgement) for outcome, judgement in found], indent=1, ensure_ascii=False)


def _row(outcome: Outcome, judgement: Judgement) -> dict:
    explained = {name: row for row, names in judgement.explained.items() for name in names}
    tests = [
        {
            "test": name,
            "outcome": result,
            "message": message,
            "kind": explained[name].kind if name in explained else None,
            "why": explained[name].why if name in explained else None,
            "evidence": explained[name].evidence if name in explained else None,
        }
        for name, (result, message) in outcome.tests.items()
    ]
    stale = [f"{row.file} {row.tests}" for row in judgement.stale]
    return {
        "suite": outcome.suite,
        "file": outcome.file,
        "seconds": round(outcome.seconds, 1),
        "unexplained": judgement.unexplained,
        "stale": stale,
        "tests": tests,
    }
