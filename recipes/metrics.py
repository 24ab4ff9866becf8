"""The metrics of a run: read from verl's console lines (checks/console.py), kept in `metrics.jsonl`."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from checks.console import Number, number, parse, plain

__all__ = ["Writer", "first_and_last", "from_log", "number", "parse", "plain", "read", "reward", "to_json"]


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
