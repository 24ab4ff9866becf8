"""What the observations of all logs come to: the first cause, what else is known, and what nothing is known of."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from checks import problems
from checks.problems import Problem
from checks.rows import Text
from checks.triage import errors, metric_rules
from checks.triage.errors import Cause
from checks.triage.scan import Hit, Observed

# cause        the first cause                        also         another problem that is known, after the cause
# consequence  what follows from a failure elsewhere  warning      costs something, ends nothing
Role = Literal["cause", "also", "consequence", "warning"]
MESSAGE = 40  # lines that the message of an exception may have
ROLES: tuple[Role, ...] = ("cause", "also", "consequence", "warning")


@dataclass(frozen=True)
class Finding:
    """A known problem and its evidence: a line of a log, or what the steps show."""

    problem: Problem
    role: Role
    evidence: Text
    log: str
    line: int | None = None
    time: str = ""
    last_time: str = ""
    source: str = ""
    rank: str = ""
    times: int = 1
    processes: int = 0  # that said it


@dataclass(frozen=True)
class Diagnosis:
    """findings: the cause first. unexplained: the error that ended the run, where no row of the table is about it."""

    findings: list[Finding]
    unexplained: tuple[str, Cause] | None = None
    logs: list[Observed] = field(default_factory=list)

    @property
    def known(self) -> bool:
        """Whether a known problem explains what the logs show."""
        roles = {finding.role for finding in self.findings}
        return "cause" in roles or bool(roles and not self.unexplained)


def diagnose(logs: Sequence[Observed]) -> Diagnosis:
    """The diagnosis of one run, from all its logs."""
    hits = [hit for observed in logs for hit in _first_of_each(observed)]
    fatal = _fatal(logs)
    causes = sorted((hit for hit in hits if hit.problem.kind == "cause"), key=_order(logs))
    generic = sorted((hit for hit in hits if hit.problem.kind == "generic"), key=_order(logs))
    rest = sorted((hit for hit in hits if hit.problem.kind == "consequence"), key=_order(logs))
    told = _said_by(fatal, causes) or _before(fatal, causes) or _said_by(fatal, generic) or _before(fatal, generic)
    unexplained = None if told or not fatal or errors.is_consequence(fatal[1].text) else fatal
    if not told and not unexplained and rest:
        told = rest[0]
    findings = [_finding(told, "cause")] if told else []
    findings += [_finding(hit, "also") for hit in (*causes, *generic) if hit is not told]
    findings += [_finding(hit, "consequence") for hit in rest if hit is not told]
    findings += _stalls(logs)
    findings += [_finding(hit, "warning") for hit in hits if hit.problem.kind == "warning"]
    findings += _from_metrics(logs, bool(told or unexplained))
    return Diagnosis(_once(sorted(findings, key=lambda finding: ROLES.index(finding.role))), unexplained, list(logs))


def _first_of_each(observed: Observed) -> list[Hit]:
    """The first hit of each row, counted together. What has a frame stands for the same line without one."""
    hits = sorted(observed.hits.values(), key=lambda hit: hit.line)
    framed = {hit.signature.line: hit for hit in hits if hit.signature.frame}
    rows: dict[str, Hit] = {}
    for hit in hits:
        owner = hit if hit.signature.frame else framed.get(hit.signature.line, hit)
        first = rows.get(owner.problem.id)
        rows[owner.problem.id] = _together(first, hit) if first else replace(hit, problem=owner.problem)
    return list(rows.values())


def _together(first: Hit, later: Hit) -> Hit:
    last = max(first.last_time, later.last_time)
    return replace(first, times=first.times + later.times, sources=first.sources | later.sources, last_time=last)


def _fatal(logs: Sequence[Observed]) -> tuple[str, Cause] | None:
    """The error that ended the run, with its log: the earliest of its own, else of those that only follow."""
    found = [(observed.log.name, cause) for observed in logs if (cause := observed.errors.cause)]
    timed = all(cause.time for _, cause in found)
    return min(found, key=lambda one: (errors.is_consequence(one[1].text), one[1].time if timed else ""), default=None)


def _said_by(fatal: tuple[str, Cause] | None, hits: list[Hit]) -> Hit | None:
    """The hit whose signature is in the error that ended the run: in its line, or in those of its message below it."""
    if fatal is None:
        return None
    log, cause = fatal
    for hit in hits:
        below = hit.log == log and hit.first.source == cause.source and 0 < hit.line - cause.line <= MESSAGE
        if below or hit.signature.pattern.search(cause.text):
            return hit
    return None


def _before(fatal: tuple[str, Cause] | None, hits: list[Hit]) -> Hit | None:
    """The first hit, unless an error of its own, in the same log, ended the run before it."""
    if not hits:
        return None
    if fatal and not errors.is_consequence(fatal[1].text) and hits[0].log == fatal[0] and hits[0].line > fatal[1].line:
        return None
    return hits[0]


def _order(logs: Sequence[Observed]):
    """By time where every hit has one, as logs of several processes have; else by log and line."""
    position = {observed.log.name: index for index, observed in enumerate(logs)}
    timed = len(logs) > 1 and all(hit.first.time for observed in logs for hit in observed.hits.values())

    def key(hit: Hit) -> tuple:
        return (hit.first.time if timed else "", position[hit.log], hit.line)

    return key


def _finding(hit: Hit, role: Role) -> Finding:
    line = hit.first
    return Finding(
        problem=hit.problem,
        role=role,
        evidence=Text(en=line.text.strip(), zh=line.text.strip()),
        log=hit.log,
        line=hit.line,
        time=line.time,
        last_time=hit.last_time,
        source=line.source,
        rank=line.rank,
        times=hit.times,
        processes=len(hit.sources),
    )


def _from_metrics(logs: Sequence[Observed], failed: bool) -> list[Finding]:
    """What the steps show; the first of it is the cause where nothing else is."""
    rows = {name: row for row in problems.load().values() for name in row.metrics}
    found = []
    for observed in logs:
        for rule in metric_rules.RULES:
            if seen := rule.look(observed.steps):
                role: Role = "warning" if failed or found else "cause"
                found.append(Finding(rows[rule.name], role, seen, observed.log.name))
    return found


def _stalls(logs: Sequence[Observed]) -> list[Finding]:
    """Times without a line: while starting, or at the end of a run that made no step after it."""
    rows = {name: row for row in problems.load().values() for name in row.metrics}
    found = []
    for observed in logs:
        for gap in observed.gaps:
            if gap.after_step and gap.after_step < len(observed.steps):
                continue  # the run went on; long rollouts say nothing for long
            slow = "slow-loading" if "loading" in gap.phase else "stall"
            name = "stalled-compiling" if gap.compiling else slow
            minutes = gap.seconds // 60
            where = ("since", "之后") if gap.open else ("before", "之前")
            seen = Text(
                en=f"no line for {minutes} minutes {where[0]} this one; phase: {gap.phase}",
                zh=f"此行{where[1]} {minutes} 分钟没有任何输出；阶段：{gap.phase}",
            )
            found.append(Finding(rows[name], "warning", seen, observed.log.name, gap.line))
    return found


def _once(findings: list[Finding]) -> list[Finding]:
    """One finding a row, the first."""
    rows: dict[str, Finding] = {}
    for finding in findings:
        rows.setdefault(finding.problem.id, finding)
    return list(rows.values())
