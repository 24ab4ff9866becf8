"""How a verdict is shown: a tick list by category, a line for each fault with its remedy, a summary; or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text as Styled

from checks import problems
from checks.doctor.check import CATEGORIES, Fault
from checks.doctor.verdict import STATUSES, Result, failed
from checks.words import Text, say

MARKS = {"pass": "✓", "warn": "!", "fail": "✗", "unknown": "?", "skip": "-"}
COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "unknown": "magenta", "skip": "dim"}
STATUS = {
    "fail": Text("failed", "失败"),
    "warn": Text("warnings", "警告"),
    "unknown": Text("unknown", "未知"),
    "skip": Text("skipped", "跳过"),
    "pass": Text("passed", "通过"),
}
EXPECTED = Text("expected {}, found {}", "应为 {}，实际为 {}")
SKIPPED = Text("{} checks skipped: they build on {}", "跳过 {} 项检查：依赖 {}")
FIT = Text("fit", "可用")
UNFIT = Text("must be fixed", "需要修复")
BETWEEN = Text("Between the machines", "机器之间")
PROBLEM = Text("problem", "问题")


def document(results: Sequence[Result], language: str = "en") -> dict:
    """For `--json`."""
    return {
        "fit": not failed(results),
        "summary": dict(_counts(results)),
        "checks": [_row(result, language) for result in results],
    }


def show(results: Sequence[Result], heading: str, language: str, console: Console, brief: bool = False) -> None:
    """Prints the tick list; with `brief` only the categories in which something is not right."""
    console.print(Styled(heading, "bold"))
    for category, title in CATEGORIES.items():
        group = [result for result in results if result.check.category == category]
        if group and not (brief and all(result.status in ("pass", "skip") for result in group)):
            _show_category(say(title, language), group, language, console)
    for cause, count in sorted(Counter(result.because for result in results if result.because).items()):
        console.print(Styled(say(SKIPPED, language).format(count, cause), "dim"))
    counts = " · ".join(f"{count} {say(STATUS[status], language)}" for status, count in _counts(results) if count)
    verdict = UNFIT if failed(results) else FIT
    console.print(
        Styled.assemble((say(verdict, language), COLOURS["fail" if failed(results) else "pass"]), f"  {counts}")
    )


def _show_category(title: str, group: Sequence[Result], language: str, console: Console) -> None:
    shown = [result for result in group if not result.because and result.status != "skip"]
    if not shown:
        return
    status = min((result.status for result in shown), key=STATUSES.index)
    passed = sum(result.status == "pass" for result in shown)
    console.print(Styled.assemble((MARKS[status], COLOURS[status]), f" {title}", (f"  {passed}/{len(shown)}", "dim")))
    for result in shown:
        if result.status != "pass":
            _show_result(result, language, console)


def _show_result(result: Result, language: str, console: Console) -> None:
    mark, title = (MARKS[result.status], COLOURS[result.status]), say(result.check.title, language)
    if result.reason:
        console.print(Styled.assemble("    ", mark, f" {title}: ", (say(result.reason, language), "dim")))
    for fault in result.faults:
        console.print(Styled.assemble("    ", mark, f" {title}: {sentence(fault, language)}"))
        console.print(Styled(f"        → {say(fault.remedy, language)}  [{reference(result, language)}]", "dim"))


def sentence(fault: Fault, language: str) -> str:
    """Expected and found, in one sentence."""
    return say(EXPECTED, language).format(say(fault.expected, language), say(fault.found, language))


def reference(result: Result, language: str) -> str:
    """The check's id, and the row of the table of known problems where there is one."""
    problem = known(result.check.problem)
    return f"{result.check.id}, {say(PROBLEM, language)} {problem}" if problem else result.check.id


def known(problem: str) -> str:
    """A problem's id, empty where the table has no such row."""
    return problem if problem in problems.load() else ""


def _counts(results: Iterable[Result]) -> Iterator[tuple[str, int]]:
    counts = Counter(result.status for result in results)
    return ((status, counts[status]) for status in STATUSES)


def _row(result: Result, language: str) -> dict:
    return {
        "id": result.check.id,
        "category": result.check.category,
        "title": say(result.check.title, language),
        "status": result.status,
        "problem": known(result.check.problem),
        "findings": [
            {name: say(getattr(fault, name), language) for name in ("expected", "found", "remedy")}
            for fault in result.faults
        ],
        "reason": say(result.reason, language) if result.reason else "",
        "because": result.because,
    }
