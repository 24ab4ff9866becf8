"""Two runs side by side: operators and numbers that moved, and nothing else."""

import json

import pytest

from errors import UserError
from recipes.rehearsal.comparison import compare


def run(folder, swiglu, norm, captured=8):
    """A run's folder with one trace and one step."""
    (folder / "trace").mkdir(parents=True)
    (folder / "config.yaml").write_text("a: 1\n")
    row = {"npu_swiglu": {"forward": swiglu, "backward": 0}, "npu_rms_norm": {"forward": 4, "backward": 2}}
    trace = {"operators": row, "graphs": {"captured": captured, "replayed": 0}}
    (folder / "trace" / "rank0-1.json").write_text(json.dumps(trace))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "actor/grad_norm": norm, "timing_s/step": swiglu}))
    return str(folder)


def test_equal_runs_say_so(tmp_path, capsys):
    assert compare(run(tmp_path / "a", 3, 0.5), run(tmp_path / "b", 3, 0.5)) == 0
    assert capsys.readouterr().out.startswith("the same operators")


def test_what_moved_is_shown_and_times_are_not(tmp_path, capsys):
    compare(run(tmp_path / "a", 0, 0.5), run(tmp_path / "b", 48, 0.75, captured=0))
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "graphs captured: 8 → 0",
        "npu_swiglu forward: 0 → 48",
        "step 1: 1 of 2 metrics moved: actor/grad_norm 0.5 → 0.75",
    ]


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: None])
def test_what_is_no_run_is_refused(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(UserError, match="expected the folder of a run"):
        compare(str(tmp_path / "x"), str(tmp_path / "x"))


def test_a_run_without_traces_is_refused(tmp_path):
    folder = run(tmp_path / "a", 1, 1.0)
    (tmp_path / "a" / "trace" / "rank0-1.json").unlink()
    with pytest.raises(UserError, match="no trace"):
        compare(folder, folder)
