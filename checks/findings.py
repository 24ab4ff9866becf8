"""What a check or a lint rule has to say, and how it is shown: worst first, with the remedy under it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["fail", "warn", "note"]
LEVELS: tuple[Level, ...] = ("fail", "warn", "note")  # worst first


@dataclass(frozen=True)
class Finding:
    """One thing found.

    `fail`: the run stops, or is wrong without saying so. `warn`: costs speed or memory, or does not do what it says.
    `note`: good to know.
    """

    rule: str
    level: Level
    subject: str  # the key, variable or place it is about
    message: str  # what was expected and what was found, with the numbers
    remedy: str
    problem: str  # row of the table of known problems

    @property
    def id(self) -> str:
        """Names this finding among all others, and the same one again next time."""
        return f"{self.rule}:{self.subject}"

    def as_json(self) -> dict[str, str]:
        """For `--json`."""
        return {"id": self.id, **asdict(self)}


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Ordered by level; within a level as they came."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
