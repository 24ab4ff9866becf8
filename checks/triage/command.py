"""`invoke triage LOG`: reads the logs, says what went wrong, and answers with an exit code."""

from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig

from checks.findings import Finding
from checks.problems import Problem
from checks.rows import Text
from checks.triage import advice, report
from checks.triage.alive import silent_seconds
from checks.triage.diagnosis import Diagnosis, diagnose
from checks.triage.reading import Log
from checks.triage.scan import Observed, scan
from checks.words import check_language

LOG = "train.log"
FOUND, NONE = 0, 3
Judge = Callable[[Path], list[Finding]]  # what the linter says of the recipe in a run directory


def run(log: str, also: Sequence[str], as_json: bool, language: str, judge: Judge | None = None) -> int:
    """Prints the diagnosis: 0 where a known problem was found, 3 where none. UserError for what cannot be read."""
    check_language(language)
    diagnosis = diagnose([_scanned(name) for name in (log, *also)])
    advised = _advised(diagnosis, Path(log), judge)
    if as_json:
        print(report.as_json(diagnosis, advised, language))
    else:
        report.show(diagnosis, advised, language)
    return FOUND if diagnosis.known else NONE


def _scanned(name: str) -> Observed:
    """What a log says, or that of a run directory; with the latter, whether its run stands still now."""
    inside = Path(name) / LOG
    if not inside.is_file():
        return scan(Log(name))
    return scan(Log(str(inside)), silent_seconds(inside.parent, inside))


def _advised(diagnosis: Diagnosis, log: Path, judge: Judge | None) -> dict[str, list[Text]]:
    """What to change in the run's recipe, by problem; nothing where the log is not in a run directory."""
    folder = log if log.is_dir() else log.parent
    config = advice.recipe_of(folder)
    if config is None or not diagnosis.findings:
        return {}
    judged = judge(folder) if judge else []
    return {row.id: _changes(row, config, judged) for row in (finding.problem for finding in diagnosis.findings)}


def _changes(row: Problem, config: DictConfig, judged: list[Finding]) -> list[Text]:
    """The row's settings against the recipe, and what the linter's rules for it say with the recipe's numbers."""
    said = [f"{one.message} → {one.remedy}  [{one.rule}]" for one in judged if one.rule in row.rules]
    return [*advice.changes(row, config), *(Text(en=text, zh=text) for text in said)]
