"""What a person sees of a run: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from recipes import metrics

# Title and verl's key.
PHASES = {
    "gen": "timing_s/gen",
    "old_log_prob": "timing_s/old_log_prob",
    "ref": "timing_s/ref",
    "update": "timing_s/update_actor",
}
HEARTBEAT_SECONDS = 30.0
ROWS = 8  # steps shown at once


@dataclass
class Progress:
    """The state of a run as it is shown."""

    total: int | None
    phase: str
    steps: list[dict] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    phase_started: float = field(default_factory=time.monotonic)

    def eta(self) -> float | None:
        """Seconds until the last step, from the recent steps' own times; None where nothing is known yet."""
        times = [step["timing_s/step"] for step in self.steps[-5:] if "timing_s/step" in step]
        if not times or not self.total:
            return None
        return max(0, self.total - self.steps[-1]["step"]) * sum(times) / len(times)


def columns(step: dict, total: int | None) -> dict[str, str]:
    """A step's figures as texts, by title."""
    reward = metrics.reward(step)
    length = step.get("response_length/mean")
    shown = {
        "step": f"{step['step']}/{total}" if total else str(step["step"]),
        "reward": "-" if reward is None else f"{reward:.4f}",
        "response length": "-" if length is None else f"{float(length):.1f}",
    }
    for title, name in {**PHASES, "total": "timing_s/step"}.items():
        value = step.get(name)
        shown[title] = "-" if value is None else f"{float(value):.1f} s"
    return shown


def duration(seconds: float) -> str:
    """12 s, 3 min 04 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Lines:
    """One line a step, one a phase, and a sign of life in long silences."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._shown = ""
        self._beat = time.monotonic()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def refresh(self) -> None:
        """Called several times a second."""
        now = time.monotonic()
        training = self._progress.phase.startswith("step ")
        if self._progress.phase != self._shown and not training:
            self._say(f"{self._progress.phase} …")
        elif now - self._beat > HEARTBEAT_SECONDS:
            self._say(f"{self._progress.phase}: {duration(now - self._progress.phase_started)} so far")
        self._shown = self._progress.phase

    def step(self, step: dict) -> None:
        """Called for each finished step."""
        figures = columns(step, self._progress.total)
        eta = self._progress.eta()
        rest = "" if eta is None else f"  ETA {duration(eta)}"
        self._say("  ".join(f"{title} {value}" for title, value in figures.items()) + rest)

    def _say(self, text: str) -> None:
        self._beat = time.monotonic()
        print(text, flush=True)


class LiveTable:
    """A table that is drawn over again; the last steps, the phase, a bar and the time left."""

    def __init__(self, progress: Progress, console: Console):
        self._progress = progress
        self._live = Live(console=console, refresh_per_second=2, get_renderable=self._draw)

    def __enter__(self) -> "LiveTable":
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def refresh(self) -> None:
        """Rich redraws by itself."""

    def step(self, _: dict) -> None:
        """The next drawing shows it."""

    def _draw(self) -> Group:
        progress, now = self._progress, time.monotonic()
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in columns({"step": 0}, None):
            table.add_column(title, justify="right")
        for step in progress.steps[-ROWS:]:
            table.add_row(*columns(step, progress.total).values())
        done = progress.steps[-1]["step"] if progress.steps else 0
        eta = progress.eta()
        rest = "" if eta is None else f"ETA {duration(eta)}"
        state = Text.assemble(
            (progress.phase, "bold"), f"  {duration(now - progress.phase_started)}  ",
            f"elapsed {duration(now - progress.started)}  ", rest,
        )  # fmt: skip
        line = Table.grid(padding=(0, 2, 0, 0))  # a progress bar alone does not end its line
        line.add_row(*([ProgressBar(total=progress.total, completed=done, width=24)] if progress.total else []), state)
        return Group(*([table] if progress.steps else []), line)


def make(progress: Progress) -> Lines | LiveTable:
    """The live table on a terminal, plain lines elsewhere. Rich honours NO_COLOR."""
    console = Console()
    live = sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal
    return LiveTable(progress, console) if live else Lines(progress)
