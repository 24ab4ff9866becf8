"""How a diagnosis is printed: for people in two languages, and as one JSON document."""

import json

from checks.phases import FIRST
from checks.rows import Text
from checks.triage.diagnosis import Diagnosis, Finding
from checks.triage.scan import Observed

COLOURS = {"cause": "bold red", "also": "yellow", "consequence": "dim", "warning": "yellow"}
WORDS = {
    "en": {
        "cause": "cause",
        "also": "also",
        "consequence": "follows",
        "warning": "note",
        "generic": "generic",
        "size": "{name} · {lines:,} lines · {steps} steps",
        "place": "{log}:{line}",
        "rank": "rank {}",
        "times": "said {} times",
        "processes": "by {found} of at least {all} processes",
        "until": "until {}",
        "because": "why: ",
        "do": "→ ",
        "change": "for this recipe: ",
        "unexplained": "the first error is no known problem:",
        "only": "only what follows from a failure is in this log: look at the log of the process that ended first",
        "nothing": "no known problem found",
        "ends": "the log ends in: {}",
        "note": "note: {}",
    },
    "zh": {
        "cause": "原因",
        "also": "另有",
        "consequence": "后果",
        "warning": "提示",
        "generic": "通用",
        "size": "{name} · {lines:,} 行 · {steps} 步",
        "place": "{log}:{line}",
        "rank": "rank {}",
        "times": "出现 {} 次",
        "processes": "来自 {found} 个进程（至少 {all} 个）",
        "until": "直到 {}",
        "because": "为什么：",
        "do": "→ ",
        "change": "针对此配方：",
        "unexplained": "最早的错误不是已知问题：",
        "only": "日志中只有某处失败的后果：请查看最先退出的进程的日志",
        "nothing": "没有发现已知问题",
        "ends": "日志结束于：{}",
        "note": "注意：{}",
    },
}


def as_json(diagnosis: Diagnosis, advice: dict[str, list[Text]], language: str) -> str:
    """The document of `--json`."""
    document = {
        "logs": [_log(observed) for observed in diagnosis.logs],
        "known": diagnosis.known,
        "findings": [_finding(finding, advice, language) for finding in diagnosis.findings],
        "unexplained": _unexplained(diagnosis),
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def show(diagnosis: Diagnosis, advice: dict[str, list[Text]], language: str) -> None:
    """Prints the diagnosis, the cause first."""
    from rich.console import Console
    from rich.text import Text as Styled

    console, words = Console(soft_wrap=True, highlight=False), WORDS[language]
    for observed in diagnosis.logs:
        log = observed.log
        console.print(words["size"].format(name=log.name, lines=log.lines, steps=len(observed.steps)), markup=False)
        for note in log.notes:
            console.print(Styled("  " + words["note"].format(note), "yellow"))
    if diagnosis.unexplained:
        log, cause = diagnosis.unexplained
        console.print(Styled(words["unexplained"], "bold"))
        console.print(Styled(f"  {log}:{cause.line}" + (f" · {cause.source}" if cause.source else ""), "dim"))
        console.print(Styled(f"  {_short(cause.text)}"))
    for finding in diagnosis.findings:
        for text, style in _lines(finding, diagnosis, advice.get(finding.problem.id, []), language):
            console.print(Styled(text, style))
    if not diagnosis.known:
        console.print(Styled(words["nothing"], "bold"))
        if (phase := diagnosis.logs[0].phases.now) != FIRST:
            console.print(Styled("  " + words["ends"].format(phase), "dim"))


def _lines(finding: Finding, diagnosis: Diagnosis, advice: list[Text], language: str) -> list[tuple[str, str]]:
    words, row = WORDS[language], finding.problem
    role = words["generic"] if row.kind == "generic" and finding.role == "cause" else words[finding.role]
    found = [(f"{role}: {row.id}  {row.title.said(language)}", COLOURS[finding.role])]
    found.append((f"  {_place(finding, diagnosis, words)}", "dim"))
    found.append((f"  > {_short(finding.evidence.said(language))}", ""))
    if finding.role == "consequence":
        return found
    if row.kind == "consequence":
        found.append((f"  {words['only']}", ""))
    found.append((f"  {words['because']}{row.cause.said(language)}", "dim"))
    found.append((f"  {words['do']}{row.remedy.said(language)}", ""))
    return found + [(f"    {words['change']}{change.said(language)}", "") for change in advice]


def _place(finding: Finding, diagnosis: Diagnosis, words: dict[str, str]) -> str:
    """Where, when and by whom a line was said."""
    parts = [words["place"].format(log=finding.log, line=finding.line) if finding.line else finding.log, finding.time]
    if finding.times > 1 and finding.last_time not in ("", finding.time):
        parts.append(words["until"].format(finding.last_time))
    parts.append(finding.source)
    parts.append(words["rank"].format(finding.rank) if finding.rank else "")
    parts.append(words["times"].format(finding.times) if finding.times > 1 else "")
    seen = max((len(observed.processes) for observed in diagnosis.logs), default=0)
    if finding.source and seen > 1:
        parts.append(words["processes"].format(found=finding.processes, all=max(seen, finding.processes)))
    return " · ".join(part for part in parts if part)


def _log(observed: Observed) -> dict:
    log = observed.log
    return {
        "name": log.name,
        "lines": log.lines,
        "bytes": log.size,
        "steps": len(observed.steps),
        "phase": observed.phases.now,
        "notes": log.notes,
    }


def _finding(finding: Finding, advice: dict[str, list[Text]], language: str) -> dict:
    row = finding.problem
    return {
        "problem": row.id,
        "kind": row.kind,
        "role": finding.role,
        "title": row.title.said(language),
        "evidence": finding.evidence.said(language),
        "log": finding.log,
        "line": finding.line,
        "time": finding.time,
        "source": finding.source,
        "rank": finding.rank,
        "times": finding.times,
        "processes": finding.processes,
        "cause": row.cause.said(language),
        "remedy": row.remedy.said(language),
        "changes": [change.said(language) for change in advice.get(row.id, [])],
    }


def _unexplained(diagnosis: Diagnosis) -> dict | None:
    if not diagnosis.unexplained:
        return None
    log, cause = diagnosis.unexplained
    return {"log": log, "line": cause.line, "source": cause.source, "text": cause.text}


def _short(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:397]}…"
