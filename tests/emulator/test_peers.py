"""The runner of the peers' tests, on a peer of our own: what passes, fails, hangs, dies, is skipped or is left out."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from emulator.peers import __main__ as command
from emulator.peers import known

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = {
    "test_good.py": """
        import torch
        import helper

        def test_runs_on_the_npu():
            assert torch.ones(2).npu().device.type == helper.DEVICE
    """,
    "test_mixed.py": """
        import pytest

        def test_passes():
            pass

        def test_fails():
            assert 1 + 1 == 3, "sums are wrong"

        @pytest.mark.parametrize("size", [1, 2])
        def test_of_sizes(size):
            assert size == 1

        @pytest.mark.skip(reason="not in this CANN")
        def test_skipped():
            pass
    """,
    "test_hanging.py": """
        import time

        def test_before():
            pass

        def test_hangs():
            time.sleep(600)
    """,
    "test_dying.py": """
        import os

        def test_dies():
            os._exit(7)
    """,
    "test_not_importable.py": "import no_such_module",
    "test_sizes.py": """
        import sys

        class TestRanks:
            world_size = 8
            size = 4096

            def test_few_ranks_and_small(self):
                assert (self.world_size, self.size) == (2, 16)
                assert sys.argv[1:] == ["--tokens", "8"]
    """,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A tree `peer` with the tests, and one `library` that they import."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "library").mkdir()
    (folder / "library" / "helper.py").write_text('DEVICE = "npu"\n')
    tests = folder / "peer" / "tests"
    tests.mkdir(parents=True)
    for name, text in FILES.items():
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        (tests / name).write_text("\n".join(line[indent:] for line in lines) + "\n")
    return folder


@pytest.fixture
def peers(root, tmp_path, capsys):
    """Runs the command with a catalogue; returns the exit code, the output and the errors."""

    def run(*arguments, reasons=(), settings=None):
        suite = {"tree": "peer", "folder": "tests", "files": ["tests/test_*.py"], "path": ["library"]}
        rows = [{"kind": "upstream", "why": "its fault", "evidence": "peer.py:1", **row} for row in reasons]
        catalogue = tmp_path / "peers.yaml"
        catalogue.write_text(yaml.safe_dump({"suites": {"own": suite}, "settings": settings or {}, "reasons": rows}))
        code = command.main(["--root", str(root), "--catalogue", str(catalogue), *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_test_runs_on_the_emulated_npu_beside_the_trees_it_needs(peers):
    code, output, _ = peers("--only", "test_good.py")
    assert code == 0
    assert "own: 1 files, tests: 1 passed, 0 failed, 0 skipped, 0 left out; 0 without a reason, 0 stale rows" in output


def test_a_failure_without_a_row_is_reported_and_one_with_a_row_is_not(peers):
    row = {"file": "peer/tests/test_mixed.py", "tests": "test_fails"}
    code, output, _ = peers("--only", "test_mixed.py", reasons=[row])
    assert code == 1
    assert "upstream × 1: its fault (peer.py:1)" in output
    assert "UNEXPLAINED test_of_sizes[2]: failed: assert 2 == 1" in output
    assert "UNEXPLAINED test_fails" not in output
    assert "skipped by the peer × 1: not in this CANN" in output
    assert "own: 1 files, tests: 2 passed, 2 failed, 1 skipped, 0 left out; 1 without a reason" in output
    code, _, _ = peers("--only", "test_mixed.py", reasons=[row, {**row, "tests": "test_of_sizes?2?"}])
    assert code == 0


def test_a_row_whose_test_passes_is_stale(peers):
    code, output, _ = peers("--only", "test_good.py", reasons=[{"file": "*/test_good.py"}])
    assert code == 1
    assert "STALE       *: passes; take its row out of peers.yaml" in output
    code, _, _ = peers("--only", "test_good.py", reasons=[{"file": "*/test_mixed.py"}])
    assert code == 0, "a row of a file that was not run says nothing"


@pytest.mark.slow
def test_what_hangs_is_ended_and_what_was_done_before_counts(peers):
    code, output, _ = peers("--only", "test_hanging.py", "--timeout", "15", "--json")
    (file,) = json.loads(output)
    assert code == 1
    assert {t["test"]: t["outcome"] for t in file["tests"]} == {"test_before": "passed", "test_hangs": "hung"}
    assert file["unexplained"] == ["test_hangs"]
    assert 15 <= file["seconds"] < 60


@pytest.mark.slow
def test_a_command_that_is_ended_ends_its_tests(root, tmp_path):
    """SIGTERM while a file hangs: nothing that was started is left."""
    suite = {"tree": "peer", "folder": "tests", "files": ["tests/test_hanging.py"], "path": ["library"]}
    (tmp_path / "peers.yaml").write_text(yaml.safe_dump({"suites": {"own": suite}}))
    arguments = ["--root", root, "--catalogue", tmp_path / "peers.yaml", "--logs", tmp_path]
    started = subprocess.Popen([sys.executable, "-m", "emulator.peers", *map(str, arguments)], cwd=REPOSITORY)
    log = tmp_path / "own_tests_test_hanging.py.log"
    while "test_hangs" not in (log.read_text() if log.exists() else ""):
        assert started.poll() is None
        time.sleep(0.2)
    (child,) = children_of(started.pid)
    started.terminate()
    assert started.wait(timeout=30) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{child}").exists()


def children_of(pid):
    """Process ids, of every thread's children."""
    return [int(c) for file in Path(f"/proc/{pid}/task").glob("*/children") for c in file.read_text().split()]


def test_a_process_that_dies_and_a_file_that_cannot_be_imported_are_failures(peers):
    code, output, _ = peers("--only", "test_dying.py")
    assert code == 1 and "UNEXPLAINED test_dies: died: exit code 7" in output
    code, output, _ = peers("--only", "test_not_importable.py")
    assert code == 1 and "(collection): failed: ModuleNotFoundError: No module named 'no_such_module'" in output


def test_settings_of_a_file(peers, root):
    settings = {
        "peer/tests/test_mixed.py": {"run_skipped": "test_skip*", "leave_out": ["test_of_*"]},
        "*/test_sizes.py": {"ranks": 2, "replace": {"4096": "16"}, "arguments": ["--tokens", "8"]},
    }
    rows = [{"file": "*/test_mixed.py", "tests": name} for name in ("test_fails", "test_of_*")]
    code, output, _ = peers("--only", "test_[ms]*i*e[ds].py", settings=settings, reasons=rows)
    assert code == 0, output
    assert "own: 2 files, tests: 3 passed, 1 failed, 0 skipped, 2 left out" in output
    assert "4096" in (root / "peer" / "tests" / "test_sizes.py").read_text(), "the tree is not touched"
    assert not list(root.rglob("__pycache__"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "expected a test file that --only 'nothing' selects"),
        (["--root", "/nowhere"], "expected a source tree peer in /nowhere, found none"),
        (["--catalogue", "/nowhere.yaml"], "/nowhere.yaml: expected suites, settings and reasons"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(peers, arguments, message):
    code, _, errors = peers(*arguments)
    assert code == 2
    assert message in errors


def test_a_row_of_an_unknown_kind_is_refused(peers):
    code, _, errors = peers("--only", "test_good.py", reasons=[{"file": "*", "kind": "weather"}])
    assert code == 2 and "kind is one of" in errors


def test_the_catalogue_says_where_each_reason_can_be_read():
    catalogue = known.load(command.CATALOGUE)
    assert {suite.name for suite in catalogue.suites} == {"mindspeed", "vllm-ascend"}
    assert catalogue.reasons
    for row in catalogue.reasons:
        assert Path(row.file).parts[0] in ("MindSpeed", "vllm-ascend")
        assert row.why and any(character.isdigit() for character in row.evidence.rpartition(":")[2]), row
