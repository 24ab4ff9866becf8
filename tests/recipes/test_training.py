"""Real trainings of the smoke recipe: verl, Megatron, vLLM, vllm-ascend and Ray on emulated devices.

Every run starts from the same seeds, so that all of them can be compared with the unbroken run of the recipe as it is.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

HOME = Path(__file__).resolve().parents[2]
MEGATRON = "actor_rollout_ref.actor.megatron"
TIME_LIMIT = 600  # seconds a training; a quiet machine needs about one minute

pytestmark = [pytest.mark.slow, pytest.mark.training]


@dataclass
class Run:
    """A finished training: its folder, exit status and what it printed."""

    folder: Path
    status: int
    output: str

    @property
    def steps(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def series(self, name: str) -> list[float]:
        return [step[name] for step in self.steps]

    def traces(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in sorted((self.folder / "trace").glob("*.json"))]


def start(folder: Path, *settings: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "invoke", "--search-root", str(HOME), "train", "--recipe", "smoke"]
    command += ["--run-dir", str(folder), *(word for setting in settings for word in ("--set", setting))]
    return subprocess.Popen(command, cwd=folder.parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(folder: Path, process: subprocess.Popen) -> Run:
    output, _ = process.communicate(timeout=TIME_LIMIT)
    return Run(folder, process.returncode, output)


def train(folder: Path, *settings: str) -> Run:
    run = finish(folder, start(folder, *settings))
    assert run.status == 0, run.output
    return run


def processes_of(folder: Path) -> list[psutil.Process]:
    """Whatever still runs with this run's mark in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ASCEND_RL_RUN") == folder.name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def comparable(step: dict) -> dict:
    """The metrics of a step that are results: not its timings, throughputs and memory."""
    return {name: value for name, value in step.items() if not name.startswith(("timing", "perf/"))}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Run:
    """The recipe as it is: two ranks, PP2, twenty steps."""
    return train(tmp_path_factory.mktemp("unbroken") / "smoke-as-it-is")


def test_it_learns(smoke):
    rewards = smoke.series("critic/score/mean")
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    assert last >= 3 * first
    assert f"first three steps {first:.4f}, last three steps {last:.4f}" in smoke.output


def test_the_run_directory_is_complete(smoke):
    for name in ("config.yaml", "command", "env.json", "matrix.json", "patches.json", "facts.json", "train.log"):
        assert (smoke.folder / name).stat().st_size > 0, name
    assert [step["step"] for step in smoke.steps] == list(range(1, 21))
    assert (smoke.folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "20"
    assert all(math.isfinite(value) for step in smoke.steps for value in step.values())
    assert processes_of(smoke.folder) == []


def test_rollout_and_trainer_agree_at_every_step(smoke):
    assert max(smoke.series("training/rollout_probs_diff_mean")) < 1e-3
    assert max(smoke.series("mismatch/mismatch_k3_kl")) < 1e-4


def test_each_rollout_uses_the_weights_of_the_step_before(smoke):
    """The rollout is as near to the trainer's weights of the moment as it is far from the initial ones (the ref)."""
    second, *later = smoke.steps[1:]
    assert second["actor/kl_loss"] > 100 * second["mismatch/mismatch_k3_kl"] > 0
    assert all(step["actor/kl_loss"] > 100 * step["mismatch/mismatch_k3_kl"] for step in later)


def test_graphs_were_captured_and_replayed(smoke):
    traces = [trace for trace in smoke.traces() if trace["graphs"]["captured"]]
    assert len(traces) == 2
    assert all(trace["graphs"]["replayed"] > trace["graphs"]["captured"] for trace in traces)


@pytest.mark.parametrize(
    "layout",
    [
        {"expert_model_parallel_size": 2},
        {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2},
        {"context_parallel_size": 2},
    ],
    ids=["ep2", "tp2-ep2", "cp2"],
)
def test_other_layouts_compute_the_same(smoke, tmp_path, layout):
    settings = [f"{MEGATRON}.{name}={size}" for name, size in {"pipeline_model_parallel_size": 1, **layout}.items()]
    run = train(tmp_path / "smoke-layout", *settings, "trainer.total_training_steps=2", "trainer.save_freq=-1")
    assert max(run.series("training/rollout_probs_diff_mean")) < 1e-3
    assert run.steps[1]["actor/kl_loss"] > 100 * run.steps[1]["mismatch/mismatch_k3_kl"]
    # The first rollout has the same weights and the same seeds whatever the trainer's layout.
    first, reference = run.steps[0], smoke.steps[0]
    assert first["critic/score/mean"] == pytest.approx(reference["critic/score/mean"], rel=1e-6)
    assert first["actor/entropy"] == pytest.approx(reference["actor/entropy"], rel=1e-3)
    assert first["actor/grad_norm"] == pytest.approx(reference["actor/grad_norm"], rel=2e-2)


def test_killed_between_two_checkpoints_it_resumes_and_repeats_the_unbroken_run(smoke, tmp_path):
    folder = tmp_path / "smoke-killed"
    settings = ("trainer.save_freq=2", "trainer.total_training_steps=5")
    process = start(folder, *settings)
    deadline = time.monotonic() + TIME_LIMIT
    while len((folder / "metrics.jsonl").read_text().splitlines() if folder.exists() else []) < 3:
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.05)
    for one in [psutil.Process(process.pid), *processes_of(folder)]:
        one.kill()
    process.wait()
    psutil.wait_procs(processes_of(folder), timeout=20)
    assert (folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "2"

    resumed = train(folder, *settings)
    assert [step["step"] for step in resumed.steps] == [1, 2, 3, 4, 5]
    for step, reference in zip(resumed.steps, smoke.steps, strict=False):
        assert comparable(step) == comparable(reference)


def test_control_c_stops_everything_it_started_and_nothing_else(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    folder = tmp_path / "smoke-stopped"
    process, said = start(folder, "trainer.total_training_steps=5"), []
    deadline = time.monotonic() + TIME_LIMIT
    while "building the model" not in "".join(said):
        assert time.monotonic() < deadline
        said.append(process.stdout.readline())
        assert said[-1], said
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    assert time.monotonic() - began < 20
    assert processes_of(folder) == []
    assert bystander.poll() is None
    bystander.kill()
