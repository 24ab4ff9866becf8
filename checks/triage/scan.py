"""One pass over a log: which known problems it speaks of, its errors, its steps, and where it stood still."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from checks import problems
from checks.console import parse
from checks.noise import is_noise
from checks.phases import LATER_MARKS, STARTING_MARKS, Phases
from checks.problems import KINDS, Problem, Signature
from checks.triage import errors
from checks.triage.cleaning import Line, clean
from checks.triage.clock import Gaps
from checks.triage.errors import Errors
from checks.triage.metric_rules import is_watched
from checks.triage.reading import Chunk, Log
from checks.triage.sieve import Sieve

STALL = 600  # seconds without a line
SHOWN = 4000  # characters of a line that are looked at, from a little before what was found
BEFORE = 500
TRACEBACK = "Traceback (most recent call last)"
LOOK_BACK = 1 << 16  # bytes of log above an error in which its traceback stands
LOOKS = 200  # tracebacks that are read per signature
PROCESSES = 4096
PROCESS = re.compile(rb"\(([A-Z]\w*(?:Dict|Runner|Worker|Core)\w*(?: [\w=]+)*? pid=\d+)")
DULL = 20000
STEP = b"step:"
NAME = 300  # bytes of the name of an exception, with its modules
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."
AFTER_NAME = (b":", b"\n", b"\r", b"", b" ", b"\x1b")
BEFORE_NAME = (b") ", b"] ", b"]: ", b"m ", b"m", b")")  # the end of a prefix, perhaps coloured
COMPILING = b"torch_extensions"


@dataclass(frozen=True, eq=False)
class Known:
    """A signature and the row of the table that it belongs to."""

    signature: Signature
    problem: Problem


@dataclass
class Hit:
    """A signature of a known problem, where it stands first, and how often and by whom it was said."""

    problem: Problem
    signature: Signature
    log: str
    line: int
    first: Line
    times: int = 0
    sources: set[str] = field(default_factory=set)
    last_time: str = ""

    def add(self, line: Line, number: int) -> None:
        """Takes in that it was said again; what is said counts before source that a traceback shows."""
        if self.first.text[:1].isspace() and not line.text[:1].isspace():
            self.first, self.line = line, number
        self.times += line.times
        if len(self.sources) < PROCESSES:
            self.sources.add(line.source)
        self.last_time = line.time or self.last_time


@dataclass(frozen=True)
class Gap:
    """A time without a line: its length in seconds, the line after it, and what was going on."""

    seconds: int
    line: int
    phase: str
    after_step: int  # number of steps that were printed before
    compiling: bool  # whether the last thing said was that an extension is being built
    open: bool = False  # whether it still lasts; then `line` is the last one


@dataclass
class Observed:
    """What a log says."""

    log: Log
    hits: dict[Known, Hit] = field(default_factory=dict)
    errors: Errors = field(default_factory=Errors)
    steps: list[dict] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)
    processes: set[bytes] = field(default_factory=set)


def scan(log: Log, silent: float | None = None) -> Observed:
    """Reads a log once; `silent`: seconds since a run that is alive last wrote. UserError where it cannot be read."""
    scanner = _Scanner(log)
    for chunk in log.chunks():
        scanner.chunk(chunk)
    if silent and silent >= STALL:
        scanner.still_silent(int(silent))
    return scanner.observed


class Remembered(set):
    """A set that forgets everything when it is full."""

    def __init__(self, size: int):
        super().__init__()
        self._size = size

    def add(self, entry: object) -> None:
        if len(self) >= self._size:
            self.clear()
        super().add(entry)


class _Scanner:
    def __init__(self, log: Log):
        self.observed = Observed(log)
        self._gaps = Gaps(STALL)
        self._sieve: tuple[bool, Sieve] | None = None
        self._above = b""  # the end of the last chunk, for tracebacks
        self._looks: dict[Known, int] = {}
        self._dull = Remembered(DULL)  # what was said and means nothing, to be passed over the next time
        self._stepped = False  # whether a step was printed since the last time

    def chunk(self, chunk: Chunk) -> None:
        """Takes in the next part of the log."""
        data, number, counted = chunk.data, chunk.line, 0
        gaps = self._own_gaps(data)
        if len(self.observed.processes) < PROCESSES:
            self.observed.processes.update(PROCESS.findall(data, 0, LOOK_BACK))
        for start, end, kinds in self._lines(data):
            number += data.count(b"\n", counted, start)
            counted = start
            while gaps and gaps[0][0] < end:
                self._gap(data, *gaps.pop(0), chunk.line)
            self._line(data, start, end, number, kinds)
        for place, seconds in gaps:
            self._gap(data, place, seconds, chunk.line)
        self._above = (self._above + data)[-LOOK_BACK:]

    def still_silent(self, seconds: int) -> None:
        """Takes in that no line has come since the last one."""
        observed = self.observed
        compiling = COMPILING in self._above.rstrip().rpartition(b"\n")[2]
        gap = Gap(seconds, observed.log.lines, observed.phases.now, len(observed.steps), compiling, open=True)
        observed.gaps.append(gap)

    def _sieve_for(self, data: bytes) -> Sieve:
        """The sieve for what is next; made anew, from what the log now looks like, when the run has started."""
        started = self.observed.phases.started
        if self._sieve is None or self._sieve[0] != started:
            self._sieve = started, Sieve(_texts(started), data)
        return self._sieve[1]

    def _own_gaps(self, data: bytes) -> list[tuple[int, int]]:
        """Place after each gap, and its seconds. Steps have no time of their own: where one was printed is no gap."""
        found, last = self._gaps.found(data), self._gaps.last_place
        own = [
            (place, seconds)
            for before, place, seconds in found
            if STEP not in data[before:place] and not (before == 0 and self._stepped)
        ]
        self._stepped = STEP in data[last:] if last >= 0 else self._stepped or STEP in data
        return own

    def _lines(self, data: bytes) -> Iterator[tuple[int, int, dict[object, int]]]:
        """Begin and end of each line with something in it, and what that is with its place."""
        start = end = -1
        kinds: dict[object, int] = {}
        for place, kind in self._sieve_for(data).found(data):
            if place >= end:
                if kinds:
                    yield start, end, kinds
                start, end, kinds = *_line_at(data, place), {}
            if isinstance(kind, bytes):
                if not _is_exception(data, start, place, kind):
                    continue
                kind = "error"
            kinds.setdefault(kind, place)
        if kinds:
            yield start, end, kinds

    def _line(self, data: bytes, start: int, end: int, number: int, kinds: dict[object, int]) -> None:
        begin = start if end - start <= SHOWN or "step" in kinds else max(start, min(kinds.values()) - BEFORE)
        limit = end if "step" in kinds else min(end, begin + SHOWN)
        raw = data[begin:limit]
        said = raw.partition(b"pid=")[2].partition(b")")[2] or raw
        if said in self._dull:
            return
        line = clean(raw.decode(errors="replace"))
        if "step" in kinds and (step := parse(line.text)):
            self._step(step)
            return
        if is_noise(line.text):
            self._dull.add(said)
            return
        if "error" in kinds:
            self.observed.errors.add(line, number)
        if "phase" in kinds:
            self.observed.phases.line(line.text)
        matching = [one for one in kinds if isinstance(one, Known) and one.signature.pattern.search(line.text)]
        if not matching and "error" not in kinds:
            self._dull.add(said)
        for known in self._most_specific(matching, line, data, start):
            self._hit(known, line, number)

    def _most_specific(self, matching: list[Known], line: Line, data: bytes, start: int) -> list[Known]:
        """The one that says most: under its frame, then of the kind that explains most, then with the longest text."""
        framed = [one for one in matching if one.signature.frame and self._has_frame(one, line, data, start)]
        rest = framed or [one for one in matching if not one.signature.frame]
        return sorted(rest, key=lambda one: (KINDS.index(one.problem.kind), -len(one.signature.literal)))[:1]

    def _has_frame(self, known: Known, line: Line, data: bytes, start: int) -> bool:
        self._looks[known] = self._looks.get(known, 0) + 1
        if self._looks[known] > LOOKS:
            return False
        above = (self._above + data[max(0, start - LOOK_BACK) : start])[-LOOK_BACK:]
        for raw in reversed(above.decode(errors="replace").split("\n")):
            other = clean(raw)
            if other.source != line.source:
                continue
            if known.signature.frame_pattern.search(other.text):
                return True
            if TRACEBACK in other.text:
                return False
        return False

    def _hit(self, known: Known, line: Line, number: int) -> None:
        hits = self.observed.hits
        if known not in hits:
            hits[known] = Hit(known.problem, known.signature, self.observed.log.name, number, line)
        hits[known].add(line, number)

    def _step(self, step: dict) -> None:
        self.observed.phases.step(step["step"])
        watched = {key: value for key, value in step.items() if is_watched(key) or not math.isfinite(value)}
        self.observed.steps.append(watched)

    def _gap(self, data: bytes, place: int, seconds: int, first: int) -> None:
        observed = self.observed
        start, _ = _line_at(data, place)
        before = (self._above if start < LOOK_BACK else b"") + data[max(0, start - LOOK_BACK) : start]
        compiling = COMPILING in before.rstrip().rpartition(b"\n")[2]
        number = first + data.count(b"\n", 0, start)
        observed.gaps.append(Gap(seconds, number, observed.phases.now, len(observed.steps), compiling))


@cache
def _known() -> tuple[Known, ...]:
    return tuple(Known(signature, problem) for signature, problem in problems.signatures())


def _texts(started: bool) -> list[tuple[str, object]]:
    """What is looked for; while a run starts, its phases, too."""
    texts: list[tuple[str, object]] = [(one.signature.literal, one) for one in _known()]
    texts += [(mark, mark.encode()) for mark in errors.MARKS]
    texts += [(mark, "error") for mark in errors.FATAL_MARKS]
    texts += [(mark, "phase") for mark in (LATER_MARKS if started else (*STARTING_MARKS, *LATER_MARKS))]
    return [*texts, (STEP.decode(), "step")]


def _line_at(data: bytes, place: int) -> tuple[int, int]:
    """Begin and end of the line round a place; a carriage return ends one, too."""
    start, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
    end = len(data) if end < 0 else end
    inner = data.find(b"\r", place, end)
    return max(start, data.rfind(b"\r", start, place) + 1), end if inner < 0 else inner


def _is_exception(data: bytes, start: int, place: int, mark: bytes) -> bool:
    """Whether the mark ends the name of an exception with which a process begins to speak."""
    after = data[place + len(mark) : place + len(mark) + 1]
    before = data[max(start, place - NAME) : place].rstrip(LETTERS)
    return after in AFTER_NAME and (not before or before.endswith(BEFORE_NAME))
