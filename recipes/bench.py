"""`invoke bench`: what the command line and the launcher cost, and patches save, against their targets. Not tests."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from checks.triage import bench as long_log
from errors import UserError
from patches import bench as patched
from recipes import command, metrics, prepare
from recipes.compose import FOLDER, HOME, compose
from recipes.scratch import make as make_scratch

INVOKE = [sys.executable, "-m", "invoke", "--search-root"]

# Stands in verl's place and writes down when it was reached.
STUB = "import os, time\nopen(os.environ['BENCH_REACHED'], 'w').write(repr(time.time()))\n"


@dataclass(frozen=True)
class Figure:
    """One line of the table: a name, what was measured, its target."""

    name: str
    measured: str
    target: str
    met: bool


@dataclass(frozen=True)
class Cost:
    """What a command took: time, the most memory that it held, and its exit status."""

    seconds: float
    megabytes: float
    status: int


def bench(recipe: str, steps: int, rounds: int) -> int:
    """Measures and prints a table; `steps` 0 leaves the trainings out. The exit code is 0 whatever the figures are."""
    figures = [listing(rounds), start(recipe, rounds), facts(rounds), doctor(rounds), triage()]
    figures += [Figure(*row) for row in patched.rows(rounds)]
    if steps:
        figures.append(overhead(recipe, steps))
    table = Table("what", "measured", "target", "", box=None, pad_edge=False)
    for figure in figures:
        verdict = "" if figure.target == "-" else "met" if figure.met else "NOT MET"
        table.add_row(figure.name, figure.measured, figure.target, verdict)
    console = Console()
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    console.print(table)
    return 0


def listing(rounds: int) -> Figure:
    """`invoke --list` against the same with an empty tasks.py, alternating; the difference of the medians."""
    with tempfile.TemporaryDirectory() as empty:
        Path(empty, "tasks.py").touch()
        ours, none = [], []
        for _ in range(rounds):
            none.append(_seconds([*INVOKE, empty, "--list"]))
            ours.append(_seconds([*INVOKE, str(HOME), "--list"]))
    extra = statistics.median(ours) - statistics.median(none)
    measured = f"{extra:.3f} s more ({statistics.median(ours):.3f} s, empty {statistics.median(none):.3f} s)"
    return Figure("invoke --list", measured, "≤ 0.1 s more", extra <= 0.1)


def start(recipe: str, rounds: int) -> Figure:
    """From `invoke train` to the first line of verl's main_ppo, with everything that comes before it; the median."""
    times = []
    with _stub() as (folder, reached):
        settings = [f"+launch.env.PYTHONPATH={folder}", f"+launch.env.BENCH_REACHED={reached}"]
        for number in range(rounds + 1):
            began = time.time()
            _train(recipe, Path(folder, f"run{number}"), settings)
            times.append(float(reached.read_text()) - began)
    median = statistics.median(times[1:])  # the first may have made the model and built the emulator
    return Figure("train until verl starts", f"{median:.2f} s (first {times[0]:.2f} s)", "≤ 2 s", median <= 2)


def facts(rounds: int) -> Figure:
    """What `python3 -m checks.facts` takes, the start of Python included."""
    return _costs("facts about this machine", [sys.executable, "-m", "checks.facts"], rounds, 2)


def doctor(rounds: int) -> Figure:
    """`invoke doctor` on a recorded machine, for a recipe: the checks and the output."""
    machine = HOME / "tests" / "checks" / "machines" / "fit-a2-host.json"
    arguments = [*INVOKE, str(HOME), "doctor", "--recipe", "qwen3-235b-30k", "--facts", str(machine)]
    return _costs("doctor on a recorded machine", arguments, rounds, 5)


def _costs(name: str, arguments: list[str], rounds: int, target: float) -> Figure:
    """Seconds and memory of a command, the median and the most."""
    costs = [_cost(arguments) for _ in range(rounds)]
    median, memory = statistics.median(cost.seconds for cost in costs), max(cost.megabytes for cost in costs)
    return Figure(name, f"{median:.2f} s, {memory:.0f} MB of memory", f"≤ {target} s", median <= target)


def _cost(arguments: list[str]) -> Cost:
    """What a command takes, its output thrown away."""
    began = time.perf_counter()
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, cwd=HOME)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)  # Popen is not to wait for it again
    return Cost(seconds, used.ru_maxrss / 1024, process.returncode)


def triage(size: int = 10**9) -> Figure:
    """`invoke triage` of a log of `size` bytes, with the memory it takes, against grep for the same signatures."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        long_log.write(log, size)
        ours, began = _cost([*INVOKE, str(HOME), "triage", str(log)]), time.perf_counter()
        long_log.count_with_grep(log)
        grep = time.perf_counter() - began
    measured = f"{ours.seconds:.1f} s, {ours.megabytes:.0f} MB of memory (grep -cE: {grep:.1f} s)"
    met = ours.status == 0 and ours.seconds < 30 * size / 10**9 and ours.megabytes < 300
    return Figure(f"triage of {size / 10**9:g} GB", measured, "< 30 s, < 300 MB", met)


def overhead(recipe: str, steps: int) -> Figure:
    """verl's own `timing_s/step` under the launcher and by hand, in the order hand, launcher, launcher, hand."""
    settings = [f"trainer.total_training_steps={steps}", "trainer.save_freq=-1"]
    by_hand, launched = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, (kind, times) in enumerate(
            [(_hand_steps, by_hand), (_launched_steps, launched), (_launched_steps, launched), (_hand_steps, by_hand)]
        ):
            times += kind(recipe, Path(folder, f"run{number}"), settings)
    hand, ours = statistics.median(by_hand), statistics.median(launched)
    share = (ours / hand - 1) * 100
    measured = f"{share:+.1f} % ({ours:.2f} s, by hand {hand:.2f} s; {len(launched)} steps each)"
    return Figure("a step under the launcher", measured, "≤ 2 % more", share <= 2)


def _launched_steps(recipe: str, run: Path, settings: list[str]) -> list[float]:
    _train(recipe, run, settings)
    return _times(metrics.read(run / "metrics.jsonl"))


def _hand_steps(recipe: str, run: Path, settings: list[str]) -> list[float]:
    """The recipe as verl alone runs it."""
    found = compose(recipe)
    scratch = make_scratch()
    run.mkdir()
    arguments = [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        "--config-dir",
        str(FOLDER),
        "--config-name",
        found.name,
    ]
    arguments += [*settings, f"hydra.run.dir={run}", f"++ray_kwargs.ray_init._temp_dir={scratch}/ray"]
    environment = command.whole(command.added_environment(found.config, prepare.site(found), run, scratch))
    _run(arguments, environment, run / "train.log")
    with (run / "train.log").open(errors="replace") as log:
        return _times(list(metrics.from_log(log)))


def _times(steps: list[dict]) -> list[float]:
    """Seconds of each step but the first, which warms up."""
    return [step["timing_s/step"] for step in steps[1:]]


def _train(recipe: str, run: Path, settings: list[str]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    arguments = [*INVOKE, str(HOME), "train", "--recipe", recipe, "--run-dir", str(run), *words]
    _run(arguments, dict(os.environ), run.with_suffix(".out"))


def _run(arguments: list[str], environment: dict[str, str], log: Path) -> None:
    with log.open("w") as out:
        done = subprocess.run(arguments, cwd=HOME, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise UserError(f"expected {' '.join(arguments[1:6])} to succeed, found: {last[0] if last else 'no message'}")


@contextmanager
def _stub() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "verl", "trainer")
        package.mkdir(parents=True)
        for path in (package.parent, package):
            (path / "__init__.py").touch()
        (package / "main_ppo.py").write_text(STUB)
        yield folder, Path(folder, "reached")


def _seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(arguments, capture_output=True, cwd=HOME)
    return time.perf_counter() - began
