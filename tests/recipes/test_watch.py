"""Following a run: lines become steps, silence becomes phases, and a full disk becomes one message."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from checks.phases import FIRST, LAST, Phases
from errors import UserError
from recipes import guard, launch, metrics, rundir, stacks, view, watch
from recipes import scratch as scratch_folder

LINES = [
    "2025-01-01 10:00:00,000\tINFO worker.py:1843 -- Started a local Ray instance.",
    "(TaskRunner pid=3) TaskRunner hostname: here, PID: 3",
    "(TaskRunner pid=3) Total training steps: 2",
    "(TaskRunner pid=3) Training from scratch",
    "(TaskRunner pid=3) step:1 - critic/score/mean:0.25 - response_length/mean:8.0 - timing_s/step:2.0",
    "(TaskRunner pid=3) local_global_step_folder: /run/checkpoints/global_step_2",
    "(TaskRunner pid=3) step:2 - critic/score/mean:nan - response_length/mean:9.0 - timing_s/step:2.0",
]


class Launched:
    """A run whose log is written a piece at a time, each time it is asked whether it has ended."""

    def __init__(self, log: Path, pieces: list[bytes]):
        self.log, self.pieces, self.stopped, self.left = log, pieces, [], []

    def poll(self) -> int | None:
        if not self.pieces or self.stopped:
            return 0
        with self.log.open("ab") as file:
            file.write(self.pieces.pop(0))
        return None

    def stop(self, at_once: bool = False) -> None:
        self.stopped.append(at_once)

    def wait_stopped(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "POLL_SECONDS", 0)
    with rundir.create(tmp_path / "run", {rundir.LOG: "step:9 - of:1 - an earlier:1 - part:1\n"}) as run:
        yield run


def test_steps_reach_the_file_however_the_log_is_cut(run, capsys):
    data = "".join(line + "\n" for line in LINES).encode()
    launched = Launched(run.log, [data[i : i + 7] for i in range(0, len(data), 7)])
    outcome = watch.watch(launched, run, run.log.stat().st_size, total=2)
    assert [step["step"] for step in outcome.steps] == [1, 2]
    assert [step["step"] for step in metrics.read(run.metrics)] == [1, 2]
    shown = capsys.readouterr().out.splitlines()
    assert shown[:4] == [
        "starting Ray …",
        "starting the task runner …",
        "reading the dataset …",
        "starting the workers …",
    ]
    assert any(line.startswith("step 1/2  reward 0.2500  response length 8.0") and "ETA 2 s" in line for line in shown)
    assert "saving a checkpoint …" in shown and "reward nan" in shown[-2] + shown[-1]


def test_a_step_that_was_there_before_is_not_written_twice(run):
    data = "\n".join([*LINES, LINES[-1], ""]).encode()
    watch.watch(Launched(run.log, [data]), run, 0, total=2, after=1)
    assert [step["step"] for step in metrics.read(run.metrics)] == [2, 9]


def test_a_last_line_without_an_end_counts(run):
    data = "\n".join(LINES).encode()
    assert len(watch.watch(Launched(run.log, [data]), run, run.log.stat().st_size, total=2).steps) == 2


def test_a_full_disk_stops_the_run_with_one_message(run):
    run.metrics.symlink_to("/dev/full")
    launched = Launched(run.log, ["\n".join([*LINES, ""]).encode()])
    with pytest.raises(UserError, match="No space left on device; free some space"):
        watch.watch(launched, run, 0, total=2)
    assert launched.stopped


def test_phases_go_forward_only():
    phases = Phases(total=2)
    assert phases.now == FIRST
    for line in LINES[:4]:
        phases.line(line)
    assert phases.now == "first step"
    phases.line(LINES[1])
    assert phases.now == "first step"
    phases.step(1)
    assert phases.now == "step 2"
    phases.step(2)
    assert phases.now == LAST


def test_workers_that_never_start_are_told():
    phases = Phases()
    line = "(raylet) Some workers of the worker process(12) have not registered within the timeout. The process is dead"
    seen = []
    for _ in range(4):
        phases.line(line)
        seen.append(phases.now)
    assert seen[:2] == [FIRST, FIRST]
    assert seen[2:] == [f"Ray's workers do not start ({n} times out of time; see the log)" for n in (3, 4)]
    phases.line(LINES[0])
    assert phases.now == "starting the task runner"


def test_the_table_shows_what_a_person_wants_to_know():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, no_color=True)
    progress = view.Progress(20, "step 3")
    for step in (1, 2):
        progress.steps.append(
            metrics.parse(f"step:{step} - critic/score/mean:0.{step} - timing_s/gen:1.5 - timing_s/step:6")
        )
    with view.LiveTable(progress, console):
        pass
    shown = out.getvalue()
    for part in ("2/20", "0.2000", "1.5 s", "step 3", "ETA 1 min 48 s", "reward", "response length", "old_log_prob"):
        assert part in shown


def test_long_silence_gives_a_sign_of_life(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: clock[0])
    lines = view.Lines(view.Progress(None, "building the model", phase_started=100.0))
    for clock[0] in range(100, 175):
        lines.refresh()
    assert capsys.readouterr().out.splitlines() == [
        "building the model …",
        "building the model: 31 s so far",
        "building the model: 1 min 02 s so far",
    ]


def test_a_program_that_is_not_there_is_one_message(run, tmp_path):
    scratch = scratch_folder.make()
    launched = launch.start(Order(["/nowhere/python"], tmp_path), run, scratch)
    with pytest.raises(UserError, match="/nowhere/python: No such file"):
        while launched.poll() is None:
            time.sleep(0.01)
    launched.guard.wait()
    assert not scratch.exists()


def test_a_run_without_progress_is_stopped_and_says_where_it_stood(run, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import importlib.util, pathlib, time\n"
        "place = pathlib.Path(sys.argv[1]) / 'emulator' / 'torch_npu' / 'stacks.py'\n"
        "spec = importlib.util.spec_from_file_location('stacks', place)\n"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)\n"
        "module.listen(sys.argv[2])\n"
        "def wait_for_a_rank_that_never_comes():\n    time.sleep(600)\n"
        "wait_for_a_rank_that_never_comes()\n"
    )
    trace = run.path / "trace"
    order = Order([sys.executable, "-c", code, str(Path(guard.__file__).parents[1]), str(trace)], tmp_path)
    order.added = {"NPU_EMULATOR_TRACE": str(trace)}
    outcome = watch.watch(launch.start(order, run, scratch_folder.make()), run, 0, None, patience=2)
    assert outcome.stalled and outcome.status != 0
    (line,) = stacks.innermost(trace).values()
    assert "wait_for_a_rank_that_never_comes" in line


def test_the_guard_finds_children_and_orphans_but_nobody_else():
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    code = (
        "import os, sys, json; sys.path.insert(0, sys.argv[1]); from recipes import guard; guard._prctl(36, 1)\n"
        "import subprocess, time\n"
        "orphan = 'import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(60)'\n"
        "subprocess.run([sys.executable, '-c', orphan])\n"
        "found = [pid for pid, (_, dead) in guard.descendants(os.getpid()).items() if not dead]\n"
        "guard.stop_descendants(0)\n"
        "print(json.dumps([len(found), len(guard.descendants(os.getpid()))]))\n"
    )
    try:
        home = str(Path(guard.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-c", code, home], capture_output=True, stdin=subprocess.PIPE, timeout=20
        )
        assert done.stdout.strip() == b"[1, 0]", done.stderr.decode()
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


class Order:
    """What launch.start wants of a command."""

    def __init__(self, arguments: list[str], folder: Path):
        self.arguments, self.folder, self.added = arguments, folder, {}

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.added}
