"""What a rehearsal says: what was shrunk, what ran, what was found, and what is not proven."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from checks import problems
from recipes.rehearsal.checks import Result
from recipes.rehearsal.miniature import UNPROVEN, Change
from recipes.rehearsal.upstream import Stack
from recipes.view import duration

STAND_IN = (
    "rollouts: the matrix's vLLM is a commit between releases, on no index, its vllm-ascend fits no release: Hugging "
    "Face's generate stood for both, so that the trainer's side ran in full"
)
MARKS = {"pass": ("✓", "green"), "fail": ("✗", "bold red"), "skip": ("–", "dim")}


def introduce(recipe: str, matrix: str, stack: Stack, changes: list[Change]) -> None:
    """The software and the changes, one a line."""
    console = _console()
    console.print(f"rehearsal of {recipe} · matrix {matrix} · on {stack.label}")
    console.print(Text("  " + " · ".join(f"{name} {version[:12]}" for name, version in stack.parts.items()), "dim"))
    by_reason: dict[str, list[Change]] = {}
    for change in changes:
        by_reason.setdefault(change.why, []).append(change)
    console.print(f"{len(changes)} keys are smaller or replaced:")
    for why, group in by_reason.items():
        console.print(f"  {why}")
        for change in group:
            console.print(Text(f"      {change.key}: {_short(change.before)} → {_short(change.after)}", "dim"))


def conclude(
    results: list[Result], stack: Stack, path: Path, seconds: float, stand_in: bool, mindspeed: dict[str, list]
) -> int:
    """The table of checks and the verdict; the exit code."""
    console = _console()
    table = Table(box=None, padding=(0, 1), show_header=False)
    for result in results:
        mark, colour = MARKS[result.status]
        table.add_row(Text(mark, colour), result.check, result.message, Text(result.problem, colour))
    console.print(table)
    if mindspeed["patches"]:
        features, names = (len(mindspeed[key]) for key in ("features", "patches"))
        console.print(f"MindSpeed: {features} features on, {names} names replaced, all listed in verdict.json")
    failed = [result for result in results if result.status == "fail"]
    console.print("not proven by this:")
    for line in (*([STAND_IN] if stand_in else []), *_skipped(results), *UNPROVEN):
        console.print(Text(f"  {line}", "dim"))
    console.print(f"ran on {stack.label}, checked on CPU · {duration(seconds)} · {path}")
    if not failed:
        console.print(Text("verdict: pass", "green"))
        return 0
    console.print(Text(f"verdict: {_cause(failed[0])}", "bold red"))
    for problem in dict.fromkeys(result.problem for result in failed):
        if row := problems.load().get(problem):
            console.print(f"  {row.id}  {row.title.en} / {row.title.zh}")
            console.print(Text(f"      → {row.remedy.en}\n      → {row.remedy.zh}", "dim"))
    return 1


def _cause(result: Result) -> str:
    return f"{result.problem or 'unknown problem'}: {result.check}: {result.message}"


def _skipped(results: list[Result]) -> list[str]:
    return [f"{result.check}: {result.message}" for result in results if result.status == "skip"]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}…"


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False)
