"""All patches against what is really there: the environment's packages, and exact checkouts where they are given."""

import compileall
import shutil
import time

import pytest

from patches import catalogue, engine, pins
from patches.places import CHECKOUTS, place

MATRICES = pytest.mark.parametrize("matrix", catalogue.MATRICES)


def test_the_environment_has_drifted_nowhere():
    """verl 0.6.0 and vllm-ascend 0.11.0rc1, read and not written."""
    judged = engine.judge(catalogue.patches("cpu"), place(None))
    found = {verdict.patch.id: verdict for verdict in judged.verdicts}
    assert not judged.drifted, [verdict.reason for verdict in judged.drifted]
    wanted = {name for name, verdict in found.items() if verdict.state != "not needed"}
    assert wanted >= {patch.id for patch in catalogue.patches("cpu") if patch.id.startswith("verl/")}


@pytest.fixture
def tree(upstream, tmp_path):
    """Copies of what patches touch of one matrix's checkouts."""

    def make(matrix: str):
        for name in dict.fromkeys(CHECKOUTS.values()):
            for part in ("verl", "recipe", "mindspeed", "megatron", "vllm_ascend"):
                if (upstream / matrix / name / part).is_dir():
                    shutil.copytree(upstream / matrix / name / part, tmp_path / matrix / name / part)
        for name in ("requirements.txt", "pyproject.toml"):
            shutil.copy(upstream / matrix / "vllm-ascend" / name, tmp_path / matrix / "vllm-ascend")
        return tmp_path / matrix

    return make


@MATRICES
def test_every_patch_applies_and_goes_again(tree, upstream, matrix):
    root = tree(matrix)
    here, patches = place(root), catalogue.patches(matrix)
    judged = engine.judge(patches, here)
    inside = [v for v in judged.verdicts if not v.patch.id.startswith("torch/")]
    assert {v.patch.id: v.state for v in inside} == {v.patch.id: "pending" for v in inside}
    engine.apply(judged)
    files = list(judged.changes)
    again = engine.judge(patches, here)
    assert {v.state for v in again.verdicts if v in inside or not v.patch.id.startswith("torch/")} == {"applied"}
    assert not again.changes
    assert all(compileall.compile_file(str(path), quiet=1) for path in files if path.suffix == ".py")
    engine.revert(here)
    for path in files:
        original = upstream / matrix / path.relative_to(root)
        assert path.exists() == original.exists()
        assert not path.exists() or path.read_bytes() == original.read_bytes()


@MATRICES
def test_the_pinned_files_are_those_of_the_lock(upstream, matrix):
    """Also: no commit of the matrix has moved on without new pins."""
    assert pins.made(matrix, place(upstream / matrix)) == pins.load()[matrix], "python -m patches.pins UPSTREAM_ROOT"


def test_patches_of_each_matrix_are_not_needed_or_named_in_the_other(upstream):
    """A patch that one matrix does not list finds nothing to mend there, or says that it finds something else."""
    for matrix in catalogue.MATRICES:
        others = [patch for patch in catalogue.every() if matrix not in patch.matrices]
        states = {v.patch.id: v.state for v in engine.judge(others, place(upstream / matrix)).verdicts}
        assert "applied" not in states.values(), states


@pytest.mark.slow
def test_both_matrices_take_under_five_seconds(tree):
    roots = {matrix: tree(matrix) for matrix in catalogue.MATRICES}
    start = time.process_time()
    for matrix, root in roots.items():
        engine.apply(engine.judge(catalogue.patches(matrix), place(root)))
    assert time.process_time() - start < 5


def test_the_lock_has_both_matrices_and_both_hashes():
    for matrix in catalogue.MATRICES:
        files = pins.load()[matrix]
        assert len(files) > 10
        assert all(pin["before"] != pin["after"] and len(pin["after"]) == 64 for pin in files.values())
