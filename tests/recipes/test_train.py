"""The launcher as a user meets it: a subprocess that starts a trainer, watches it, and stops what it started."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

LAUNCHER = Path(__file__).resolve().parent / "launcher.py"
ENVIRONMENT = {**os.environ, "NO_COLOR": "1"}


def command(recipe: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(LAUNCHER), "train", "--recipe", str(recipe), *arguments]


def run(recipe: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(recipe, *arguments),
        env={**ENVIRONMENT, **environment},
        cwd=recipe.parent,
        capture_output=True,
        text=True,
        timeout=50,
    )


@contextmanager
def started(recipe: Path, folder: Path, *settings: str):
    """A training that lasts, once its first step is in the metrics."""
    slow = ["+launch.env.FAKE_STRAYS=2", "launch.env.FAKE_STEP_SECONDS=0.3", "trainer.total_training_steps=500"]
    arguments = [word for setting in [*slow, *settings] for word in ("--set", setting)]
    process = subprocess.Popen(
        command(recipe, "--run-dir", str(folder), *arguments),
        env=ENVIRONMENT,
        cwd=recipe.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: steps(folder), "a first step")
        yield process
    finally:
        process.kill()
        process.communicate()
        wait_for(lambda: not marked(folder), "everything to stop")


def steps(folder: Path) -> list[int]:
    try:
        return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    except OSError:
        return []


def marked(folder: Path) -> list[int]:
    """The processes whose environment says that this run started them."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"ASCEND_RL_RUN={folder.name}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def scratch(folder: Path) -> Path:
    """The folder for sockets and temporary files that the run's environment names."""
    return Path(json.loads((folder / "env.json").read_text())["TMPDIR"]).parent


def wait_for(condition, what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def test_a_run_leaves_everything_in_its_directory_and_nothing_elsewhere(recipe, tmp_path):
    folder = tmp_path / "run"
    before = sorted(tmp_path.iterdir())
    done = run(recipe, "--run-dir", str(folder), WANDB_API_KEY="hush-hush")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 1/6  reward 0.1000  response length 12.5" in done.stdout
    assert "mean reward: first three steps 0.2000, last three steps 0.5000" in done.stdout
    assert steps(folder) == [1, 2, 3, 4, 5, 6]
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert first["response_length/mean"] == 12.5 and first["actor/lr"] == 1e-06
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["total_training_steps"] == 6
    assert json.loads((folder / "matrix.json").read_text())["name"] == "cpu"
    assert json.loads((folder / "patches.json").read_text()) == {"applied": []}
    environment = (folder / "env.json").read_text()
    assert "hush-hush" not in environment and json.loads(environment)["WANDB_API_KEY"] == "(redacted)"
    assert "step:6 -" in (folder / "train.log").read_text()
    assert not scratch(folder).exists(), "the scratch folder is removed"
    assert sorted(tmp_path.iterdir()) == sorted([*before, folder])


def test_the_command_file_runs_by_hand(recipe, tmp_path):
    folder = tmp_path / "run"
    assert run(recipe, "--run-dir", str(folder)).returncode == 0
    again = subprocess.run(["sh", folder / "command"], capture_output=True, text=True, timeout=20, cwd="/")
    shutil.rmtree(scratch(folder))  # the command makes it again
    assert again.returncode == 0 and "step:6 -" in again.stdout, again.stderr


def test_dry_run_prints_the_command_and_writes_nothing(recipe, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    done = run(recipe, "--run-dir", str(tmp_path / "run"), "--dry-run", "--set", "trainer.total_training_steps=3")
    assert done.returncode == 0
    assert "verl.trainer.main_ppo" in done.stdout and "FAKE_STEP_SECONDS=0.01" in done.stdout
    assert f"hydra.run.dir={tmp_path}/run" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_that_the_run_started_and_nothing_else(recipe, tmp_path, number):
    folder = tmp_path / f"stopped-{number.name}"
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        with started(recipe, folder) as process:
            wait_for(lambda: len(marked(folder)) >= 3, "the trainer and its two strays")
            place = scratch(folder)
            assert place.is_dir()
            began = time.monotonic()
            process.send_signal(number)
            assert process.wait(timeout=20) == 128 + number
            assert time.monotonic() - began < 20
            assert marked(folder) == []
            assert not place.exists()
            assert "stopped; everything that this run started has ended" in process.stdout.read()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_killing_the_launcher_stops_the_run_too(recipe, tmp_path):
    folder = tmp_path / "killed"
    with started(recipe, folder) as process:
        place = scratch(folder)
        process.kill()
        process.wait()
        wait_for(lambda: not marked(folder) and not place.exists(), "the guard to stop everything")
    resumed = run(recipe, "--run-dir", str(folder))
    assert resumed.returncode == 0, "the directory is free again once everything has stopped"


def test_a_second_training_in_a_live_directory_is_refused(recipe, tmp_path):
    folder = tmp_path / "live"
    with started(recipe, folder) as process:
        before = (folder / "config.yaml").read_bytes()
        second = run(recipe, "--run-dir", str(folder))
        assert second.returncode == 2
        assert f"process {process.pid} holds it" in second.stderr and "Traceback" not in second.stderr
        assert (folder / "config.yaml").read_bytes() == before
        seen = len(steps(folder))
        wait_for(lambda: len(steps(folder)) > seen, "the first training to go on")


def test_a_failure_ends_with_the_cause_the_directory_and_the_next_step(recipe, tmp_path):
    folder = tmp_path / "failed"
    done = run(recipe, "--run-dir", str(folder), "--set", "+launch.env.FAKE_FAIL_AT=3")
    assert done.returncode == 1
    tail = done.stdout.splitlines()[-5:]
    assert tail[0] == "the run failed: exit code 1"
    assert tail[1] == "last error: RuntimeError: the matrix is singular"
    assert tail[3] == f"run directory: {folder}" and tail[4].startswith(f"next: invoke triage {folder}/train.log")
    assert "Traceback" not in done.stdout + done.stderr
    line = int(tail[2].split()[1])
    assert "the matrix is singular" in (folder / "train.log").read_text().splitlines()[line - 1]


def test_resuming_starts_at_the_last_complete_checkpoint(recipe, tmp_path):
    folder = tmp_path / "resumed"
    assert run(recipe, "--run-dir", str(folder), "--set", "+launch.env.FAKE_FAIL_AT=6").returncode == 1
    assert steps(folder) == [1, 2, 3, 4, 5]
    half = folder / "checkpoints" / "global_step_4"
    (half / "data.pt").write_bytes(b"")
    kept = {path: path.read_bytes() for path in (folder / "checkpoints").rglob("*") if path.is_file()}
    for step in (1, 2):  # lines that a killed launcher did not write are found in the log
        text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(text[1:]) if step == 1 else "".join(text))
    done = run(recipe, "--run-dir", str(folder), "--set", "trainer.total_training_steps=5")
    assert done.returncode == 0, done.stdout
    assert "global_step_4 is half-written and is passed over: data.pt is cut off" in done.stdout
    assert "resuming after step 2" in done.stdout
    assert "trainer.total_training_steps: was 6, is 5" in done.stdout
    assert "launch.env.FAKE_FAIL_AT: was 6, is nothing" in done.stdout
    assert "Setting global step to 2" in (folder / "train.log").read_text()
    assert steps(folder) == [1, 2, 3, 4, 5]
    for path, content in kept.items():
        if "global_step_2" in str(path):
            assert path.read_bytes() == content, "an earlier checkpoint is never touched"


@pytest.mark.parametrize("total", [6, 4, 3])
def test_a_finished_run_is_left_as_it_is(recipe, tmp_path, total):
    """Also where fewer steps are asked for than there are."""
    folder = tmp_path / "finished"
    assert run(recipe, "--run-dir", str(folder)).returncode == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    again = run(recipe, "--run-dir", str(folder), "--set", f"trainer.total_training_steps={total}")
    assert again.returncode == 0 and f"all {total} steps are done" in again.stdout
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("content", [b"a: [", b"- a", b"5", b"\xff\xfe\x00", b"a: ${", b""])
def test_an_earlier_run_with_a_damaged_config(recipe, tmp_path, content):
    folder = tmp_path / "damaged"
    assert run(recipe, "--run-dir", str(folder), "--set", "trainer.total_training_steps=2").returncode == 0
    (folder / "config.yaml").write_bytes(content)
    metrics = (folder / "metrics.jsonl").read_bytes()
    done = run(recipe, "--run-dir", str(folder))
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 2 and f"{folder}/config.yaml: expected the earlier run's config" in done.stderr
    assert (folder / "metrics.jsonl").read_bytes() == metrics and (folder / "config.yaml").read_bytes() == content


def test_a_reader_that_leaves_stops_the_run_quietly(recipe, tmp_path):
    """`train | head -3`"""
    folder = tmp_path / "left"
    slow = ["--set", "launch.env.FAKE_STEP_SECONDS=0.2", "--set", "trainer.total_training_steps=500"]
    process = subprocess.Popen(
        command(recipe, "--run-dir", str(folder), *slow),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(3):
        assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=40) == 141
    assert process.stderr.read() == ""
    assert marked(folder) == [] and not scratch(folder).exists()


def test_an_output_that_is_full_stops_the_run_with_one_message(recipe, tmp_path):
    folder = tmp_path / "full"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(recipe, "--run-dir", str(folder)),
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=40,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "error: expected to write to standard output, found: No space left on device; "
        "free some space or send it elsewhere\n"
    )
    assert marked(folder) == []


def test_no_complete_checkpoint_means_the_first_step(recipe, tmp_path):
    folder = tmp_path / "early"
    assert run(recipe, "--run-dir", str(folder), "--set", "+launch.env.FAKE_FAIL_AT=2").returncode == 1
    done = run(recipe, "--run-dir", str(folder))
    assert done.returncode == 0 and "starting from the first step" in done.stdout
    assert steps(folder) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_the_recipe_names_starts_a_new_run(recipe, tmp_path):
    given = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/old/global_step_4"]
    done = run(recipe, "--run-dir", str(tmp_path / "warm"), *(word for one in given for word in ("--set", one)))
    assert done.returncode == 0 and steps(tmp_path / "warm") == [5, 6]


@pytest.mark.parametrize(
    ("prepare", "parts"),
    [
        (lambda folder: folder.write_text("a file"), ["expected a folder, found a file"]),
        (lambda folder: (folder.mkdir(), (folder / "thesis.tex").touch()), ["expected an earlier run", "other things"]),
    ],
)
def test_a_place_that_holds_something_else_is_refused(recipe, tmp_path, prepare, parts):
    folder = tmp_path / "taken"
    prepare(folder)
    done = run(recipe, "--run-dir", str(folder))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def test_findings_before_the_start_leave_no_directory(recipe, tmp_path):
    (tmp_path / "model" / "model.safetensors").write_bytes(b"12")
    (tmp_path / "reward.py").unlink()
    done = run(recipe, "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 1 and "2 finding(s)" in done.stderr
    assert not (tmp_path / "run").exists()
