"""Follows a started run: its log becomes `metrics.jsonl` and what a person sees; Ctrl-C becomes an orderly stop."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from checks.phases import Phases
from recipes import metrics, stacks, view
from recipes.launch import Launched
from recipes.rundir import RunDir, explained

POLL_SECONDS = 0.1
STOPPING = "stopping everything that this run started"


@dataclass
class Outcome:
    """How a run ended: exit status, the signal that a user stopped it with, and the steps it made."""

    status: int
    signal: int | None = None
    steps: list[dict] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    stalled: str = ""  # the phase in which it made no progress and was stopped for that


def watch(
    launched: Launched, run: RunDir, offset: int, total: int | None, after: int = 0, patience: float = math.inf
) -> Outcome:
    """Watches until the run has ended and everything that it started is gone.

    `offset` is where this run's part of the log begins, `after` the last step of an earlier part. A run whose log does
    not grow for `patience` seconds is stopped, after its processes were asked where they stand. Raises UserError where
    the metrics cannot be written; the run is stopped first.
    """
    phases = Phases(total)
    progress = view.Progress(total, phases.now)
    seen: set[int] = set(range(1, after + 1))
    with _stopping(launched), _writer(run) as writer, _signals(launched) as received, view.make(progress) as shown:
        log, stalled, heard = _Tail(run, offset), "", time.monotonic()
        while True:
            status = launched.poll()  # before reading: what was printed last is still read
            for line in log.lines(final=status is not None):
                heard = time.monotonic()
                step = metrics.parse(line)
                if step is None:
                    phases.line(line)
                elif step["step"] not in seen:
                    seen.add(step["step"])
                    with explained(run.metrics):
                        writer.append(step)
                    phases.step(step["step"])
                    progress.steps.append(step)
                    shown.step(step)
            _follow(progress, STOPPING if received else phases.now)
            shown.refresh()
            if status is not None:
                break
            if not stalled and not received and time.monotonic() - heard > patience:
                stalled = phases.now
                stacks.ask(run.path / "trace")
                launched.stop()
            time.sleep(POLL_SECONDS)
    return Outcome(status, received[0] if received else None, progress.steps, launched.left, stalled)


def _follow(progress: view.Progress, phase: str) -> None:
    if progress.phase != phase:
        progress.phase, progress.phase_started = phase, time.monotonic()


class _Tail:
    """The lines that are added to a log. A line counts once it ends."""

    def __init__(self, run: RunDir, offset: int):
        self._file = run.log.open("rb")
        self._file.seek(offset)
        self._rest = b""

    def lines(self, final: bool) -> Iterator[str]:
        """The lines that have come since the last call; with `final`, an unfinished last one too."""
        data = self._file.read()
        if data or final:
            *whole, self._rest = (self._rest + data).split(b"\n")
            if final and self._rest:
                whole.append(self._rest)
            yield from (line.decode(errors="replace") for line in whole)
        if final:
            self._file.close()


@contextmanager
def _signals(launched: Launched) -> Iterator[list[int]]:
    """SIGINT, SIGTERM and SIGHUP stop the run; a second one stops it at once."""
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        launched.stop(at_once=bool(received))
        received.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _stopping(launched: Launched) -> Iterator[None]:
    """Whatever keeps the watch from going on stops the run."""
    try:
        yield
    except BaseException:
        launched.stop()
        launched.wait_stopped()
        raise


@contextmanager
def _writer(run: RunDir) -> Iterator[metrics.Writer]:
    with explained(run.metrics):
        writer = metrics.Writer(run.metrics)
    try:
        yield writer
    finally:
        writer.close()
