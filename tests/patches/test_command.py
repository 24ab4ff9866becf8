"""The verbs, as they are typed: what they print, their exit codes, one JSON document."""

import json
import re
from pathlib import Path

import pytest

import cli
from checks import problems
from patches import catalogue
from tests.patches.samples import contents

EXPECTED = "def get_full_args():\n    full_args = get_args()\n    return full_args\n"


@pytest.fixture
def invoke(capsys):
    """Runs a verb as `./invokew` does; what it printed."""

    def run(*arguments, code: int = 0):
        left = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            left = stop.code
        out, err = capsys.readouterr()
        assert left == code, out + err
        return out, err

    return run


@pytest.fixture
def root(write):
    return write({"MindSpeed/mindspeed/args_utils.py": EXPECTED.replace("get_full_args", "other")})


def test_apply_check_diff_revert(write, invoke):
    p2p = "MindSpeed/mindspeed/features_manager/pipeline_parallel/optimize_p2p_comm.py"
    register = 'core = "megatron.training.arguments.core_transformer_config_from_args"\n'
    text = (
        "class OptimizeP2PCommFeature:\n    def register_patches(self, patch_manager, args):\n        patch_manager."
        'register_patch("megatron.training.arguments.core_transformer_config_from_args", '
        "core_transformer_config_from_args_wrapper)\n"
    )
    root = write({"MindSpeed/mindspeed/args_utils.py": EXPECTED, p2p: register + text})
    before = contents(root)
    here = ("--matrix", "commercial", "--root", root)
    shown = json.loads(invoke("patches.list", *here, "--json", "--check", code=1)[0])
    states = {row["id"]: row["state"] for row in shown["patches"]}
    assert states["mindspeed/full-args"] == "pending" and states["verl/batch-layout"] == "not needed"
    invoke("patches.apply", *here, "--check", code=1)
    assert contents(root) == before
    table, _ = invoke("patches.apply", *here)
    assert "2 files written" in table and "\x1b" not in table
    difference, _ = invoke("patches.diff", *here)
    assert "-    full_args = get_args()\n+    full_args = _GLOBAL_ARGS and get_args()" in difference
    invoke("patches.list", *here, "--check")
    invoke("patches.revert", "--root", root, "--check", code=1)
    assert len(json.loads(invoke("patches.revert", "--root", root, "--json")[0])["files"]) == 2
    assert contents(root) == before


def test_drift_is_a_finding_and_bad_arguments_are_not(root, invoke):
    before = contents(root)
    table, _ = invoke("patches.apply", "--matrix", "commercial", "--root", root, code=1)
    assert "expected one get_full_args, found none; the nearest is other" in table and "nothing was written" in table
    assert contents(root) == before
    _, message = invoke("patches.list", "--matrix", "mars", "--root", root, code=2)
    assert "expected one of performance, commercial, cpu" in message
    _, message = invoke("patches.apply", "--root", "/nowhere", code=2)
    assert "found nothing there" in message


def test_every_patch_belongs_to_a_known_problem_and_says_why():
    known = problems.load()
    for patch in catalogue.every():
        assert patch.id.split("/")[0] in ("verl", "mindspeed", "vllm-ascend", "megatron", "torch")
        assert patch.why and patch.upstream and set(patch.matrices) <= set(catalogue.MATRICES)
        if patch.problem in known:
            assert set(patch.matrices) & {catalogue.SAME_AS.get(m, m) for m in known[patch.problem].matrices}, patch.id


def test_remedies_name_patches_that_there_are():
    """In the table of problems and in the linter's findings."""
    ids = {patch.id for patch in catalogue.every()}
    texts = [path.read_text() for path in [problems.TABLE, *Path("recipes/lint").glob("*.py")]]
    named = {
        name for text in texts for name in re.findall(r"\b(?:verl|mindspeed|vllm-ascend)/[a-z][a-z-]+\b(?![/.])", text)
    }
    assert named <= ids and len(named) > 10
