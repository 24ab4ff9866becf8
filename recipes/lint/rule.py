"""A rule: a pure function from a recipe's facts to what is wrong, with a row that says how it is reported."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checks.findings import Finding, Level
from recipes.lint.facts import Facts

PERFORMANCE, COMMERCIAL, CPU = "performance", "commercial", "cpu"
NPU = (PERFORMANCE, COMMERCIAL)
ALL = (PERFORMANCE, COMMERCIAL, CPU)
NEWER = (PERFORMANCE, CPU)  # verl 21271aa and 0.6.0, vLLM 0.11.0


@dataclass(frozen=True)
class Fault:
    """What a rule found: the key it is about, expected and found with the numbers put in, what to do."""

    subject: str
    message: str
    remedy: str


Check = Callable[[Facts], Iterator[Fault]]


@dataclass(frozen=True)
class Rule:
    """A row of the table of rules."""

    id: str
    check: Check
    problem: str  # row of the table of known problems
    level: Level = "fail"
    matrices: tuple[str, ...] = ALL
    vary: tuple[str, ...] = ()  # sizes for which the nearest passing values are looked up
    layout: bool = False  # whether it decides on the number of nodes

    def findings(self, facts: Facts) -> Iterator[Finding]:
        """What it finds in a recipe; nothing for a matrix that it does not hold for."""
        if facts.matrix in self.matrices:
            for fault in self.check(facts):
                yield Finding(self.id, self.level, fault.subject, fault.message, fault.remedy, self.problem)
