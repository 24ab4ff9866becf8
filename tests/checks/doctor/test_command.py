"""`invoke doctor` as a user types it: exit codes, languages, files that are none, and any facts at all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks import doctor
from checks.doctor import cluster, document, verdict
from checks.doctor.check import Case
from errors import UserError
from recipes.doctor import Asked, named_paths, run
from tests.checks.doctor import machines

ROOT = Path(__file__).resolve().parents[3]
MACHINES = ROOT / "tests" / "checks" / "machines"
FIT, LAPTOP, FIGHTS = (str(MACHINES / f"{name}.json") for name in ("fit-a2-host", "no-npu", "package-fights"))


def test_exit_codes_and_output(capsys):
    assert run(Asked(facts=[FIT])) == 0
    shown = capsys.readouterr().out
    assert "matrix performance" in shown and "✓ NPUs and driver" in shown and "\x1b" not in shown
    assert run(Asked(facts=[FIGHTS])) == 1
    shown = capsys.readouterr().out
    assert "✗ numpy is below 2: expected < 2, found 2.2.6" in shown and "→ pip install numpy==1.26.0" in shown


def test_a_machine_without_npus_is_judged_for_emulated_ones_unless_asked_otherwise(capsys):
    assert run(Asked(facts=[LAPTOP])) == 0
    assert "no NPU on this machine, so judged by the matrix cpu" in capsys.readouterr().out
    assert run(Asked(facts=[LAPTOP], matrix="performance")) == 1
    shown = capsys.readouterr().out
    assert shown.count("✗") == 2  # of the category and of the check
    assert "checks skipped: they build on npu.present" in shown


NO_NPU = {"npu/bus": [], "npu/nodes": [], "npu/smi": {"missing": True}}


@pytest.fixture
def image(tmp_path):
    """The facts of a container of the image, changed here and there, as a file."""

    def saved(change: dict | None = None) -> str:
        file = tmp_path / "image.json"
        file.write_text(json.dumps(machines.document("image-container", change)))
        return str(file)

    return saved


def judged(capsys, **asked) -> tuple[int, dict, dict]:
    code = run(Asked(as_json=True, **asked))
    (machine,) = json.loads(capsys.readouterr().out)["machines"]
    return code, machine, {row["id"]: row for row in machine["checks"]}


def test_a_container_of_an_image_is_judged_by_the_image_s_matrix(image, capsys):
    code, machine, rows = judged(capsys, facts=[image({"image/matrix": "commercial"})])
    assert machine["matrix"] == "commercial" and rows["image.matrix"]["status"] == "pass" and "npu.driver" in rows
    assert code == 1 and rows["packages.verl"]["status"] == "fail"  # its verl is that of performance
    code, machine, rows = judged(capsys, facts=[image({"image/matrix": "commercial"})], matrix="performance")
    assert machine["matrix"] == "performance" and rows["image.matrix"]["status"] == "fail"
    _, machine, rows = judged(capsys, facts=[image({"image/matrix": "commercial"})], recipe="qwen3-30b-a3b-30k")
    assert machine["matrix"] == "performance" and rows["image.matrix"]["problem"] == "B9"


def test_an_image_without_npus_is_judged_for_emulated_ones_unless_asked_otherwise(image, capsys):
    file = image(NO_NPU)
    assert run(Asked(facts=[file])) == 0
    assert "the image is judged for emulated ones; --matrix performance asks" in capsys.readouterr().out
    for recipe in ("", "smoke"):
        _, machine, rows = judged(capsys, facts=[file], recipe=recipe)
        assert machine["matrix"] == "performance" and "npu.present" not in rows
        assert {rows[name]["status"] for name in ("image.packages", "packages.verl", "packages.vllm")} == {"pass"}
    assert run(Asked(facts=[file], matrix="performance")) == 1
    assert "checks skipped: they build on npu.present" in capsys.readouterr().out
    code, _, rows = judged(capsys, facts=[file], recipe="qwen3-235b-30k")
    assert code == 1 and rows["npu.present"]["status"] == "fail"
    code, _, rows = judged(capsys, facts=[image({**NO_NPU, "packages/transformers": "4.52.4"})])
    assert code == 1 and rows["image.packages"]["problem"] == "B10"


def test_outside_of_an_image_nothing_is_said_of_one(capsys):
    _, _, rows = judged(capsys, facts=[FIT])
    assert {row["status"] for name, row in rows.items() if name.startswith("image.")} == {"skip"}


def test_a_manifest_that_cannot_be_read_is_no_image_and_is_said(image, capsys):
    _, machine, rows = judged(capsys, facts=[image({"image": {"unknown": "ValueError: expected a manifest"}})])
    assert machine["matrix"] == "performance"
    assert {row["status"] for name, row in rows.items() if name.startswith("image.")} == {"unknown"}


def test_in_an_image_its_own_patches_are_looked_at(image, monkeypatch, capsys):
    """Here, with the packages of this environment; also where there is no NPU."""
    found = machines.document("image-container", NO_NPU)
    states = [machines.PatchState("verl/rollout-seeds", "pending", "F1")]
    monkeypatch.setattr("checks.facts.collect", lambda *_: found)
    monkeypatch.setattr("recipes.doctor.patch_states", lambda matrix: states)
    code, _, rows = judged(capsys)
    assert code == 1 and rows["image.patches"]["findings"][0]["found"] == "pending"


def test_chinese(capsys):
    run(Asked(facts=[FIGHTS], language="zh"))
    assert "numpy 低于 2: 应为 < 2，实际为 2.2.6" in capsys.readouterr().out


def test_json(capsys):
    assert run(Asked(recipe="qwen3-235b-30k", facts=[FIGHTS], as_json=True)) == 1
    (machine,) = json.loads(capsys.readouterr().out)["machines"]
    rows = {row["id"]: row for row in machine["checks"]}
    assert len(rows) > 100 and not machine["fit"] and machine["matrix"] == "performance"
    assert rows["packages.uvloop"]["problem"] == "F17"
    assert rows["packages.uvloop"]["findings"][0]["found"] == "0.22.1"
    assert sum(machine["summary"].values()) == len(rows)


def test_several_files_are_judged_against_each_other(capsys):
    assert run(Asked(facts=[FIT, FIGHTS], as_json=True)) == 1
    found = json.loads(capsys.readouterr().out)
    rows = {row["id"]: row for row in found["between"]["checks"]}
    assert rows["cluster.packages"]["status"] == "fail" and rows["cluster.driver"]["status"] == "pass"
    assert run(Asked(facts=[FIT, FIGHTS])) == 1
    shown = capsys.readouterr().out
    assert "Between the machines" in shown and "✓ Host" not in shown  # of several, only what is not right


def test_what_is_saved_can_be_judged_again(tmp_path, capsys):
    saved = tmp_path / "facts.json"
    code = run(Asked(matrix="cpu", save=str(saved), as_json=True))
    first = json.loads(capsys.readouterr().out)["machines"][0]["summary"]
    assert run(Asked(matrix="cpu", facts=[str(saved)], as_json=True)) == code
    assert json.loads(capsys.readouterr().out)["machines"][0]["summary"] == first


def test_a_node_that_did_not_answer_is_reported_once(monkeypatch, capsys):
    fit = document.read(FIT)
    silent = document.Facts({"unknown": "no answer within 60 s"})
    monkeypatch.setattr(cluster, "collect", lambda named, address: {"node-a": fit, "node-b": silent})
    assert run(Asked(cluster=True, matrix="performance")) == 1
    shown = capsys.readouterr().out
    assert shown.count("no answer within 60 s") == 1 and shown.count("✗") == 2


def test_a_recipe_for_emulated_npus_needs_none_here(capsys):
    run(Asked(recipe="smoke"))
    shown = capsys.readouterr().out
    assert "matrix cpu · smoke" in shown and "npu.present" not in shown


def test_the_recipe_s_paths_are_whole_and_local():
    settings = {"actor_rollout_ref.model.path": "~/model", "data.train_files": ["a.parquet", "b"]}
    settings["trainer.default_local_dir"] = "hdfs://a/b"
    found = named_paths(settings)
    assert found["actor_rollout_ref.model.path"] == os.path.expanduser("~/model")
    assert found["data.train_files"] == str(Path.cwd() / "a.parquet") and len(found) == 2


BAD = {
    "empty": (b"", "nothing in it"),
    "binary": (b"\x00\xff\xfe\x80", "expected JSON"),
    "cut off": (Path(FIT).read_bytes()[:4000], "expected JSON"),
    "invalid UTF-8": (b'{"format": 2, "a": "\xff"}', "expected JSON"),
    "other version": (b'{"format": 1}', "of format 2, found format 1"),
    "no version": (b"{}", "found format None"),
    "a list": (b"[]", "found list"),
    "a number": (b"1e999999", "found float"),
    "deep": (b"[" * 100_000, "expected JSON"),
    "a long line": (b'"' + b"a" * 5_000_000, "expected JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_facts_document(name, tmp_path):
    content, message = BAD[name]
    file = tmp_path / "facts.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        run(Asked(facts=[str(file)]))
    assert error.value.code == 2 and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked(facts=["/nonexistent"]), "No such file"),
        (Asked(facts=["/"]), "a folder"),
        (Asked(facts=[FIT], deep=True), "--facts: expected no"),
        (Asked(cluster=True, deep=True), "--deep: expected no --cluster"),
        (Asked(language="fr"), "--lang fr: expected one of en, zh"),
        (Asked(facts=[FIT], matrix="nope"), "unknown matrix"),
        (Asked(facts=[FIT], recipe="nope"), "found no file"),
        (Asked(matrix="cpu", save="/nonexistent/facts.json"), "expected to write there"),
    ],
)
def test_bad_arguments(asked, message):
    with pytest.raises(UserError, match=message) as error:
        run(asked)
    assert error.value.code == 2


def test_the_verb(tmp_path):
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "doctor", "--facts", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "found: a folder" in done.stderr and "Traceback" not in done.stderr


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(node: object, path: str = "") -> list[str]:
    """Every place in a document."""
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found = [path] if path else []
    for name, value in parts:
        if "/" not in str(name):
            found += places(value, f"{path}/{name}" if path else str(name))
    return found


PLACES = [place for place in places(machines.document("fit-container")) if place != "format"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(PLACES), JSON | st.just(machines.GONE), min_size=1, max_size=4))
def test_no_facts_make_it_stumble(change):
    """Whatever stands in the place of a fact, a check passes, finds, or says that it does not know."""
    try:
        facts = machines.document("fit-container", change)
    except (KeyError, IndexError, TypeError, ValueError):  # one change has taken another's place away
        return
    of = Case(document.checked(facts, "facts"), machines.load("performance"), machines.settings("performance"))
    results = verdict.judge(of, doctor.CHECKS)
    assert len(results) > 100 and {one.status for one in results} <= set(verdict.STATUSES)


@settings(max_examples=40, deadline=None)
@given(JSON)
def test_any_document_at_all(value):
    whole = {"format": 2, **value} if isinstance(value, dict) else value
    try:
        facts = document.checked(whole, "facts")
    except UserError:
        return
    assert verdict.judge(Case(facts, machines.load("performance")), doctor.CHECKS)
