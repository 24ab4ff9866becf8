"""`invoke problems`: the table of known problems for people, for programs, and for the READMEs."""

import json
import sys
from pathlib import Path

from checks import problems
from checks.conditions import shown
from checks.problems import Problem
from checks.words import LANGUAGES, check_language
from errors import UserError

BEGIN, END = "<!-- problems: made by python -m checks.listing -->", "<!-- end of problems -->"
READMES = {"en": "README.md", "zh": "README.zh.md"}

# How a row is found or removed: field of the row, and the command that does it.
MEANS = {
    "checks": "doctor",
    "rules": "lint",
    "patches": "patches",
    "signatures": "triage",
    "metrics": "triage",
}
HEADINGS = {"en": ("id", "problem", "found or removed by"), "zh": ("编号", "问题", "由何处发现或消除")}
LABELS = {
    "matrices": ("matrices", "矩阵"),
    "cause": ("cause", "原因"),
    "remedy": ("remedy", "处理"),
    "applies_if": ("only if", "适用条件"),
    "settings": ("settings", "设置"),
    "introduced": ("introduced", "引入"),
    "fixed": ("fixed", "修复"),
    "checks": ("invoke doctor", "invoke doctor"),
    "rules": ("invoke lint", "invoke lint"),
    "patches": ("patches", "补丁"),
    "metrics": ("in metrics", "指标规则"),
    "signatures": ("in logs", "日志特征"),
    "source": ("source", "依据"),
}


def show(problem: str, as_json: bool, language: str) -> int:
    """Prints one row in full, or all in short. UserError for a language or an id that there is not."""
    check_language(language)
    rows = [problems.get(problem)] if problem else list(problems.load().values())
    if as_json:
        document = [row.model_dump(mode="json") for row in rows]
        print(json.dumps(document[0] if problem else document, indent=1, ensure_ascii=False))
    elif problem:
        _show_one(rows[0], language)
    else:
        _show_all(rows, language)
    return 0


def means(row: Problem) -> list[str]:
    """The commands that find or remove a problem."""
    return list(dict.fromkeys(command for field, command in MEANS.items() if getattr(row, field)))


def markdown(language: str) -> str:
    """The table as it stands in that language's README."""
    lines = ["| " + " | ".join(HEADINGS[language]) + " |", "|---|---|---|"]
    lines += [
        f"| {row.id} | {row.title.said(language)} | {', '.join(means(row))} |" for row in problems.load().values()
    ]
    return "\n".join(lines)


def filled(text: str, language: str) -> str:
    """A README with the table between its marks. UserError where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"expected the lines {BEGIN} and {END} in {READMES[language]}, found none")
    return f"{before}{BEGIN}\n\n{markdown(language)}\n\n{END}{after}"


def _show_all(rows: list[Problem], language: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADINGS[language], box=None)
    for row in rows:
        table.add_row(row.id, row.title.said(language), ", ".join(means(row)))
    Console().print(table)


def _show_one(row: Problem, language: str) -> None:
    from rich.cells import set_cell_size
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"{row.id}  {row.title.said(language)}", "bold"))
    for field, labels in LABELS.items():
        for position, line in enumerate(_lines(row, field, language)):
            label = labels[LANGUAGES.index(language)] if position == 0 else ""
            console.print(Text(f"  {set_cell_size(label, 15)}{line}"))


def _lines(row: Problem, field: str, language: str) -> list[str]:
    value = getattr(row, field)
    if field in ("cause", "remedy"):
        return [value.said(language)]
    if field == "settings":
        return [f"--set {key}={shown(setting)}" for key, setting in value.items()]
    if field == "signatures":
        return [one.line + (f"  (under {one.frame})" if one.frame else "") for one in value]
    if isinstance(value, tuple):
        return [", ".join(value)] if value else []
    return [value] if value else []


def main() -> None:
    """Puts the table into both READMEs."""
    for language, name in READMES.items():
        path = Path(__file__).resolve().parent.parent / name
        path.write_text(filled(path.read_text(encoding="utf-8"), language), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
