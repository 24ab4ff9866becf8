"""The engine: four states, nothing written where one has drifted, bytes that come back."""

import py_compile
from pathlib import Path

import pytest

from errors import UserError
from patches import engine, journal
from patches.patch import Added, Edits, Lines, Patch
from patches.places import place
from patches.shapes import append, replace
from tests.patches.samples import BOTH, FILES, GUARD, WRAP, A, contents, made


@pytest.fixture(autouse=True)
def ours(tmp_path, monkeypatch):
    """A folder of added modules with one of them."""
    (tmp_path / "added/verl").mkdir(parents=True)
    (tmp_path / "added/verl/ours.py").write_text("ours = 1\n")
    monkeypatch.setattr("patches.patch.ADDED", tmp_path / "added")
    return tmp_path / "added/verl/ours.py"


def states(root: Path, *patches: Patch) -> list[str]:
    return [verdict.state for verdict in engine.judge(patches, place(root)).verdicts]


def test_pending_then_applied_then_pending_with_the_bytes_of_before(write):
    root = write(FILES)
    before = contents(root)
    patch = made(GUARD, WRAP, Added("verl.ours"), Lines("verl", "setup.cfg", lambda text: text.replace("==", ">=")))
    assert states(root, patch) == ["pending"]
    engine.apply(engine.judge([patch], place(root)))
    assert states(root, patch) == ["applied"]
    after = contents(root)
    assert after["verl/verl/a.py"] == A.replace(b"\tfirst", b"\tguard()\r\n\tfirst")
    assert (after["verl/verl/ours.py"], after["verl/setup.cfg"]) == (b"ours = 1\n", b"torch>=1\n")
    engine.apply(engine.judge([patch], place(root)))
    assert contents(root) == after, "twice is once"
    assert len(engine.revert(place(root))) == 4
    assert contents(root) == before
    assert engine.revert(place(root)) == []


def test_what_is_mended_upstream_or_not_there_is_not_needed(write):
    root = write({**FILES, "verl/verl/b.py": "def g():\n    second()\n    third()\n"})
    absent = made(Edits("mindspeed.a", GUARD.edits[0]))
    assert states(root, made(WRAP), absent) == ["not needed", "not needed"]
    assert states(root, BOTH) == ["pending"], "the other target still needs it"
    reasons = [verdict.reason for verdict in engine.judge([made(WRAP), absent], place(root)).verdicts]
    assert reasons == ["g has it: third()", "mindspeed is not there"]


def test_one_drifted_patch_stops_all(write):
    root = write({**FILES, "verl/verl/b.py": "def g():\n    second(2)\n"})
    before = contents(root)
    judged = engine.judge([made(GUARD, id="verl/good"), made(WRAP, id="verl/bad")], place(root))
    assert [verdict.state for verdict in judged.verdicts] == ["pending", "drifted"]
    with pytest.raises(UserError) as raised:
        engine.apply(judged)
    assert raised.value.code == 1
    assert "verl/bad: verl.b: expected 'second()' once in g, found 'second(2)'" in str(raised.value)
    assert contents(root) == before


def test_a_patch_undone_by_half_is_drifted_and_by_whole_pending(write):
    root = write(FILES)
    twice = made(Edits("verl.a", *GUARD.edits, append("", "f()")), Added("verl.ours"))
    engine.apply(engine.judge([twice], place(root)))
    path = root / "verl/verl/a.py"
    path.write_bytes(path.read_bytes().replace(b"\tguard()\r\n", b""))
    verdict = engine.judge([twice], place(root)).verdicts[0]
    assert (verdict.state, verdict.reason) == ("drifted", "expected all of its edits made or none, found 2 of 3")
    path.write_bytes(A)
    assert states(root, twice) == ["pending"]


@pytest.mark.parametrize(
    "text, found",
    [("def f(:\n", "verl.a: expected Python in a.py"), ("x = '\xe4'\n".encode("latin-1"), "expected Python in a.py")],
)
def test_what_is_no_python_is_drift(write, text, found):
    root = write({**FILES, "verl/verl/a.py": text})
    verdict = engine.judge([made(GUARD)], place(root)).verdicts[0]
    assert verdict.state == "drifted" and found in verdict.reason


def test_a_missing_module_is_drift_unless_it_is_optional(write):
    root = write(FILES)
    gone = replace("f", "first()", "...")
    optional = Edits("verl.gone", gone, optional=True)
    assert states(root, made(Edits("verl.gone", gone)), made(optional), made(GUARD, optional)) == [
        "drifted",
        "not needed",
        "pending",
    ]


def test_patches_of_one_file_add_up(write):
    root = write(FILES)
    second = made(Edits("verl.a", append("", "f()")), id="verl/second")
    engine.apply(engine.judge([made(GUARD), second], place(root)))
    assert states(root, made(GUARD), second) == ["applied", "applied"]
    text = (root / "verl/verl/a.py").read_bytes()
    assert b"guard()\r\n" in text and text.endswith(b"\r\nf()\r\n")


def test_a_patch_that_has_changed_starts_from_the_original(write, ours):
    root = write(FILES)
    engine.apply(engine.judge([made(GUARD, Added("verl.ours"))], place(root)))
    ours.write_text("ours = 2\n")
    newer = made(Edits("verl.a", replace("f", "first(1)", "other()\n...")), Added("verl.ours"))
    assert states(root, newer) == ["pending"]
    engine.apply(engine.judge([newer], place(root)))
    assert states(root, newer) == ["applied"]
    assert (root / "verl/verl/a.py").read_bytes() == A.replace(b"\tfirst", b"\tother()\r\n\tfirst")
    assert (root / "verl/verl/ours.py").read_text() == "ours = 2\n"
    engine.revert(place(root))
    assert (root / "verl/verl/a.py").read_bytes() == A


def test_changes_of_others_are_not_lost(write):
    root = write(FILES)
    engine.apply(engine.judge([BOTH], place(root)))
    mine = root / "verl/verl/b.py"
    mine.write_bytes(mine.read_bytes() + b"# mine\n")
    before = contents(root)
    with pytest.raises(UserError, match=r"verl/verl/b.py") as raised:
        engine.revert(place(root))
    assert raised.value.code == 1 and contents(root) == before
    third = made(Edits("verl.b", append("", "g()")), id="verl/third")
    with pytest.raises(UserError, match=r"expected it as patches\.apply left it"):
        engine.apply(engine.judge([BOTH, third], place(root)))
    assert contents(root) == before


def test_a_package_that_was_installed_anew_is_patched_anew(write):
    root = write(FILES)
    engine.apply(engine.judge([BOTH], place(root)))
    newer = {**FILES, "verl/verl/a.py": A + b"x = 1\r\n"}
    write(newer)
    assert states(root, BOTH) == ["pending"]
    engine.apply(engine.judge([BOTH], place(root)))
    engine.revert(place(root))
    assert (root / "verl/verl/a.py").read_bytes() == newer["verl/verl/a.py"]


def test_a_file_that_changes_meanwhile_stops_the_writing(write):
    root = write(FILES)
    judged = engine.judge([BOTH], place(root))
    (root / "verl/verl/a.py").write_bytes(A + b"x = 1\r\n")
    with pytest.raises(UserError, match="found it changed; run it again"):
        engine.apply(judged)


def test_stale_bytecode_goes_and_permissions_stay(write):
    root = write(FILES)
    path = root / "verl/verl/a.py"
    path.chmod(0o640)
    stale = Path(py_compile.compile(str(path), doraise=True))
    engine.apply(engine.judge([BOTH], place(root)))
    assert not stale.exists() and path.stat().st_mode & 0o777 == 0o640


def test_a_place_that_cannot_be_written_is_the_users_to_mend(write, monkeypatch):
    root = write(FILES)
    judged = engine.judge([BOTH], place(root))
    monkeypatch.setattr(
        journal, "_put", lambda path, content: (_ for _ in ()).throw(OSError(28, "No space left", path))
    )
    with pytest.raises(UserError, match="free some space"):
        engine.apply(judged)


@pytest.mark.parametrize("given, found", [("nowhere", "found nothing there"), (".", "found none of them")])
def test_a_root_without_upstream_is_refused(tmp_path, given, found):
    with pytest.raises(UserError, match=found):
        place(tmp_path / given)


def test_one_command_at_a_time(write):
    root = write(FILES)
    judged = engine.judge([BOTH], place(root))
    with journal.lock(root), pytest.raises(UserError, match="another command is patching it"):
        engine.apply(judged)
