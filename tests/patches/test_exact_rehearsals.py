"""Rehearsals on the exact commits with all patches of the matrix: what each patch is for, seen in a whole training.

Where UPSTREAM_ROOT is given; its trees are not edited, copies made of links are patched. Three to four minutes each.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patches import catalogue, engine
from patches.places import CHECKOUTS, place
from recipes.compose import HOME
from tests.patches.copies import linked

ACTOR = "actor_rollout_ref.actor.megatron"
# PP8 of production alone: two stages here, two copies of the model, two rollout engines of two ranks.
LAYOUT = (
    f"{ACTOR}.context_parallel_size=1",
    f"{ACTOR}.tensor_model_parallel_size=1",
    f"{ACTOR}.expert_model_parallel_size=1",
    "trainer.nnodes=2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=16",
    *(
        f"actor_rollout_ref.{key}_max_token_len_per_gpu=32768"
        for key in ("actor.ppo", "rollout.log_prob", "ref.log_prob")
    ),
)
ENGINES = {"performance": (), "commercial": ("launch.rollout.data_parallel=1",)}  # 796871d knows one way only
# Checks of the verdict that show a patch at work.
SHOWN = {
    "performance": {
        "two steps",  # mindspeed/extra-state: weights load; vllm-ascend/moe-layout
        "weights sent to the rollout",  # verl/expert-gather
        "noise of rollout engines",  # verl/rollout-seeds
        "distinct answers, step 1",  # the same, and verl/batch-layout
        "graph captures",  # verl/real-compile
        "save, resume, next step",  # mindspeed/extra-state
        "checkpoint after the resumed step",  # verl/resume-moments
    },
    "commercial": {
        "two steps",  # mindspeed/full-args and p2p-guard, verl/index-first-axis: the stack starts
        "weights sent to the rollout",
        "distinct answers, step 1",
        "save, resume, next step",
        "checkpoint after the resumed step",
    },
}

pytestmark = [pytest.mark.slow, pytest.mark.training]


@pytest.fixture
def patched(upstream, tmp_path):
    """Makes a patched copy of a matrix's checkouts; its folder and the ids of the patches."""

    def make(matrix: str) -> tuple[Path, set[str]]:
        root = tmp_path / matrix
        for name in dict.fromkeys(CHECKOUTS.values()):
            linked(upstream / matrix / name, root / name)
        judged = engine.judge(catalogue.patches(matrix), place(root))
        engine.apply(judged)
        return root, {each.patch.id for each in judged.verdicts if each.state == "pending"}

    return make


@pytest.mark.parametrize("matrix", catalogue.MATRICES)
def test_a_patched_tree_passes(patched, tmp_path, matrix):
    root, ids = patched(matrix)
    run = tmp_path / "run"
    settings = [word for setting in (*LAYOUT, *ENGINES[matrix]) for word in ("--set", setting)]
    command = [sys.executable, "-m", "invoke", "train", "--rehearse", "--recipe", "qwen3-235b-30k"]
    command += ["--matrix", matrix, "--root", str(root), "--run-dir", str(run), *settings]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=3600)
    assert (run / "verdict.json").is_file(), done.stdout + done.stderr
    verdict = json.loads((run / "verdict.json").read_text())
    shown = json.dumps(verdict["results"], indent=1)
    found = {result["check"]: result for result in verdict["results"]}
    assert done.returncode == 0, shown
    assert all(name in verdict["stack"]["label"] for name in ids) and len(ids) > 10
    assert {found[check]["status"] for check in SHOWN[matrix]} == {"pass"}, shown
    assert found["distinct answers, step 1"]["message"].startswith("4 of 4"), shown
    assert "rows of prompts and responses line up" in (run / "train.log").read_text()
    if "graph captures" in SHOWN[matrix]:
        assert int(found["graph captures"]["message"].split()[0]) > 0, shown
