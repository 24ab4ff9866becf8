"""Two rehearsals side by side: which operators a switch changed, how often they ran, and whether the numbers moved."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from errors import UserError
from recipes import rundir
from recipes.rehearsal import observations
from recipes.rehearsal.observations import Observations


def compare(first: str, second: str) -> int:
    """Prints what differs between the runs of two folders; the exit code is 0, also where nothing does."""
    one, other = (_read(Path(folder).expanduser()) for folder in (first, second))
    lines = [*operators(one, other), *numbers(one, other)]
    print("\n".join(lines) if lines else "the same operators, as often, and the same numbers in every step")
    return 0


def operators(one: Observations, other: Observations) -> Iterator[str]:
    """A line for each operator or counter whose calls differ, summed over all processes."""
    before, after = counts(one), counts(other)
    for name in sorted(before.keys() | after.keys()):
        if before[name] != after[name]:
            yield f"{name}: {before[name]} → {after[name]}"


def numbers(one: Observations, other: Observations) -> Iterator[str]:
    """A line for each step: equal, or the metrics that moved."""
    for step in sorted({entry["step"] for entry in (*one.steps, *other.steps)}):
        before, after = one.numbers(step), other.numbers(step)
        moved = sorted(key for key in before.keys() | after.keys() if str(before.get(key)) != str(after.get(key)))
        if moved:
            shown = ", ".join(f"{key} {before.get(key)} → {after.get(key)}" for key in moved[:5])
            more = f" and {len(moved) - 5} more" if len(moved) > 5 else ""
            yield f"step {step}: {len(moved)} of {len(before.keys() | after.keys())} metrics moved: {shown}{more}"


def counts(seen: Observations) -> Counter:
    """Calls of each operator, and graphs, of all processes of a run."""
    found: Counter = Counter()
    for trace in seen.traces:
        for name, row in (trace.get("operators") or {}).items():
            found[f"{name} forward"] += row["forward"]
            found[f"{name} backward"] += row["backward"]
        for name, number in (trace.get("graphs") or {}).items():
            found[f"graphs {name}"] += number
    return +found


def _read(folder: Path) -> Observations:
    if not (folder / rundir.CONFIG).is_file():
        raise UserError(f"{folder}: expected the folder of a run (with {rundir.CONFIG}), found none; see runs/")
    seen = observations.read(folder)
    if not seen.traces:
        raise UserError(f"{folder}: expected a run on emulated devices, found no trace of them; rehearse the recipe")
    return seen
