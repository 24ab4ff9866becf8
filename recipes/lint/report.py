"""How a lint report is printed: for people, worst first, and as one JSON document."""

import json

from checks.findings import LEVELS
from recipes.lint import Report, lint

COLOURS = {"fail": "bold red", "warn": "yellow", "note": "dim"}


def run(name: str, matrix: str | None, nodes: int, settings: list[str] | None, as_json: bool) -> int:
    """Lints and prints; the exit code: 1 where something must be fixed."""
    report = lint(name, matrix, nodes, settings or [])
    if as_json:
        print(json.dumps(_document(report, nodes), indent=1, ensure_ascii=False))
    else:
        _show(report, nodes)
    return 1 if report.failed else 0


def _document(report: Report, asked: int) -> dict:
    return {
        "recipe": report.recipe,
        "matrix": report.matrix,
        "nodes": report.nodes,
        "minimum_nodes": report.legal[0] if report.legal else None,
        "legal_nodes": report.legal,
        "largest_legal_nodes": _largest(report, asked),
        "findings": [finding.as_json() for finding in report.findings],
    }


def _show(report: Report, asked: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{report.recipe} · {report.matrix} · {report.nodes} nodes")
    for finding in report.findings:
        head = Text.assemble((f"{finding.level:<4}", COLOURS[finding.level]), f"  {finding.message}")
        console.print(head)
        console.print(Text(f"      → {finding.remedy}  [{finding.rule}, problem {finding.problem}]", "dim"))
    for line in _node_lines(report, asked):
        console.print(line)
    counts = [(level, sum(one.level == level for one in report.findings)) for level in LEVELS]
    console.print(" · ".join(f"{count} {level}" for level, count in counts))


def _node_lines(report: Report, asked: int) -> list[str]:
    if not report.legal:
        return ["nodes: no count fits these sizes"]
    lines = [f"nodes: at least {report.legal[0]}; {_counts(report.legal)} fit"]
    if asked:
        largest = _largest(report, asked)
        lines.append(f"nodes: the largest not above {asked} is {largest or 'none'}")
    return lines


def _largest(report: Report, asked: int) -> int | None:
    return max((count for count in report.legal if not asked or count <= asked), default=None)


def _counts(legal: list[int], shown: int = 12) -> str:
    """Node counts in words, the first ones of many."""
    more = f" and {len(legal) - shown} more" if len(legal) > shown else ""
    return ", ".join(map(str, legal[:shown])) + more
