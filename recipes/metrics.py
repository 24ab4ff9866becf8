"""verl's console line, `step:N - KEY:VALUE - KEY:VALUE …`, read back into numbers, and the file that keeps them.

The line is written by verl/utils/logger/aggregate_logger.py (read in verl 0.6.0): values are numbers printed by pprint,
so plain ints and floats, `nan`, `inf`, and with numpy 2 also `np.float64(0.5)`. Ray puts `(TaskRunner pid=1)` before
it, possibly coloured, and a progress bar may stand on the same line.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

Number = int | float | bool

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
STEP = re.compile(r"(?:^|[\s\r)])step:(-?\d+)(?= - |\s*$)(?: - )?(.*)$")
LITERAL = r"[-+]?(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)|True|False"
VALUE = rf"(?:(?:np|numpy)\.\w+\((?:{LITERAL})\)|{LITERAL})"
PAIR = re.compile(rf"(?P<key>.+?):(?P<value>{VALUE})(?: - |\s*$)", re.IGNORECASE)


def plain(line: str) -> str:
    """A line of the log without colours and without what a carriage return has overwritten on the terminal."""
    return ANSI.sub("", line).rstrip("\r\n").rsplit("\r", 1)[-1]


def parse(line: str) -> dict[str, Number] | None:
    """The step and every metric of a console line, or None if it is another line. `step` comes first."""
    if "step:" not in line:
        return None
    found = STEP.search(plain(line))
    if not found:
        return None
    metrics: dict[str, Number] = {"step": int(found[1])}
    for pair in PAIR.finditer(found[2]):
        metrics[pair["key"]] = number(pair["value"])
    return metrics


def number(text: str) -> Number:
    """The number that Python or numpy printed as `text`."""
    inner = text[text.index("(") + 1 : -1] if text.endswith(")") else text
    if inner in ("True", "False"):
        return inner == "True"
    try:
        return int(inner)
    except ValueError:
        return float(inner)


def to_json(metrics: dict[str, Number]) -> str:
    """One line of `metrics.jsonl`. JSON has no nan and inf: they become the texts that `float()` takes back."""
    return json.dumps({key: _finite(value) for key, value in metrics.items()}, allow_nan=False)


def read(file: Path) -> list[dict]:
    """The steps of a `metrics.jsonl`; a later line of a step replaces the earlier, what is no step is left out."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    steps: dict[int, dict] = {}
    for line in lines:
        try:
            metrics = json.loads(line)
            if type(metrics["step"]) is int:
                steps[metrics["step"]] = metrics
        except (ValueError, KeyError, TypeError):
            continue
    return [steps[step] for step in sorted(steps)]


def from_log(lines: Iterable[str]) -> Iterator[dict[str, Number]]:
    """The steps of a log, in the order in which they stand in it."""
    return filter(None, map(parse, lines))


def reward(metrics: dict) -> float | None:
    """Mean reward of a step: the score before any KL penalty, else the reward; None where the step trained nothing."""
    return _as_float(metrics.get("critic/score/mean", metrics.get("critic/rewards/mean")))


def first_and_last(steps: Iterable[dict], count: int = 3) -> tuple[float, float] | None:
    """Mean reward over the first and over the last `count` training steps; None where no step trained."""
    rewards = [value for value in map(reward, steps) if value is not None]
    if not rewards:
        return None
    first, last = rewards[:count], rewards[-count:]
    return sum(first) / len(first), sum(last) / len(last)


class Writer:
    """Appends to `metrics.jsonl`: each step reaches the file whole, in one write, as soon as it is known."""

    def __init__(self, file: Path):
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, metrics: dict[str, Number]) -> None:
        """Raises OSError where the disk is full."""
        data = (to_json(metrics) + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        os.close(self._descriptor)


def _finite(value: Number) -> Number | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_float(value: object) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
