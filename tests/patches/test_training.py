"""Trainings in an environment whose packages are patched: a copy of this one, made of links."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.patches.copies import linked

HOME = Path(__file__).resolve().parents[2]
SETTINGS = ("trainer.total_training_steps=2", "trainer.save_freq=-1", "+launch.env.VERL_ROLLOUT_INTERLEAVE='0'")
TRAINER = "verl/trainer/ppo/ray_trainer.py"
PROMPTS = "                    batch = batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave="

pytestmark = [pytest.mark.slow, pytest.mark.training]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """An environment of its own, with every patch that applies to its packages."""
    folder = tmp_path_factory.mktemp("patched") / "environment"
    venv.create(folder, symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    shutil.rmtree(packages)
    linked(Path(sysconfig.get_path("purelib")), packages, ".patches")
    (folder / "emulator").symlink_to(Path(sys.prefix) / "emulator")
    done = invoke(folder, "patches.apply", "--matrix", "cpu")
    assert done.returncode == 0, done.stdout
    return folder


def invoke(environment: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [environment / "bin" / "python", "-m", "invoke", "--search-root", str(HOME), *arguments]
    given = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=environment.parent, env=given, timeout=600, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def train(environment: Path, name: str) -> tuple[Path, subprocess.CompletedProcess]:
    run = environment.parent / name
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return run, invoke(environment, "train", "--recipe", "smoke", "--run-dir", str(run), *settings)


def test_the_smoke_recipe_trains_with_every_patch(environment):
    run, done = train(environment, "whole")
    assert done.returncode == 0, done.stdout
    applied = json.loads((run / "patches.json").read_text())["applied"]
    assert {"verl/batch-layout", "verl/rollout-seeds", "megatron/thd-rope", "torch/shard-validation"} <= set(applied)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["training/rollout_probs_diff_mean"] < 1e-3 for step in steps)
    assert "actor/entropy" not in steps[0], "old log-probs without the entropy: patched code ran"


def test_a_half_undone_layout_is_stopped_at_the_first_step(environment):
    trainer = Path(sysconfig.get_path("purelib", vars={"base": str(environment)})) / TRAINER
    patched = trainer.read_text()
    edited = patched.replace(f"{PROMPTS}rl_batch_layout.interleave())", f"{PROMPTS}True)")
    assert edited != patched
    trainer.unlink()  # the name, not what other environments have under it
    trainer.write_text(edited)
    try:
        run, done = train(environment, "half")
    finally:
        trainer.write_text(patched)
    assert done.returncode == 1 and not (run / "metrics.jsonl").read_text(), done.stdout
    assert "rows of prompts and responses" in done.stdout, done.stdout
