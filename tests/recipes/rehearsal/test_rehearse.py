"""`invoke train --rehearse` for real: bad input in words, and a production recipe on the installed packages."""

import json
import subprocess
import sys

import pytest

from recipes.compose import HOME

ONE_COPY = (  # PP8 of production alone: two stages here, two copies of the model
    "actor_rollout_ref.actor.megatron.context_parallel_size=1",
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1",
    "actor_rollout_ref.actor.megatron.expert_model_parallel_size=1",
    "trainer.nnodes=2",
    *(
        f"actor_rollout_ref.{key}_max_token_len_per_gpu=32768"
        for key in ("actor.ppo", "rollout.log_prob", "ref.log_prob")
    ),
)


def rehearse(*arguments, timeout=900):
    command = [sys.executable, "-m", "invoke", "train", "--rehearse", *arguments]
    return subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=timeout)


def settings(*given):
    return [word for setting in given for word in ("--set", setting)]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--recipe", "qwen3-235b-30k", "--root", "/nowhere"], 2, "expected a folder with verl"),
        (["--recipe", "qwen3-235b-30k", "--nodes", "3"], 1, "expected a recipe whose sizes fit together"),
        (["--recipe", "qwen3-235b-30k", "--any-commit", "--root", "tests"], 2, "git clone https://github.com/"),
        (["--recipe", "qwen3-23b"], 2, "did you mean"),
    ],
)
def test_bad_input_is_refused_in_words(arguments, code, words):
    done = rehearse(*arguments, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_dry_run_shows_what_shrinks_and_starts_nothing(tmp_path):
    done = rehearse("--recipe", "qwen3-235b-30k", "--dry-run", "--run-dir", str(tmp_path / "run"), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "tensor_model_parallel_size: 4 → 2" in done.stdout and not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.training
def test_a_production_recipe_on_the_installed_packages(tmp_path):
    """verl 0.6.0 has the faults F1 and F28 of the pins, and no other that a rehearsal looks for."""
    run = tmp_path / "run"
    done = rehearse("--recipe", "qwen3-235b-30k", "--run-dir", str(run), *settings(*ONE_COPY))
    verdict = json.loads((run / "verdict.json").read_text())
    found = {result["check"]: (result["status"], result["problem"]) for result in verdict["results"]}
    shown = json.dumps(verdict["results"], indent=1)
    assert done.returncode == 1, shown
    assert found["noise of rollout engines"] == ("fail", "F1"), shown
    assert found["checkpoint after the resumed step"] == ("fail", "F28"), shown
    failed = {check for check, (status, _) in found.items() if status == "fail"}
    assert failed == {"noise of rollout engines", "checkpoint after the resumed step"}, shown
    assert found["graph captures"][0] == "pass" and found["weights sent to the rollout"][0] == "pass", shown
    assert {check for check in found if check.startswith("log-probs")} >= {"log-probs trainer-hf, step 1"}, shown
