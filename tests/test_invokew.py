"""invokew finds its folder and its Python anywhere, and makes the environment exactly when it has to.

environment.py is replaced by one that makes a tiny .venv at once; tests/test_environment.py tests the real one.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Makes a .venv whose python prints how it was called, and notes that it ran.
MAKER = """
import pathlib, stat, sys
root = pathlib.Path(__file__).parent
with open(root / "made", "a") as log:
    log.write("made\\n")
if (root / "broken").exists():
    sys.exit(2)
python = root / ".venv" / "bin" / "python"
python.parent.mkdir(parents=True, exist_ok=True)
python.write_text('#!/bin/sh\\npwd\\nfor a; do printf "<%s>" "$a"; done; echo; exit 7\\n')
python.chmod(0o755)
(root / ".venv" / "invokew.sum").write_text(sys.argv[1] + "\\n")
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    folder = tmp_path / "a check out"
    folder.mkdir()
    shutil.copy(ROOT / "invokew", folder)
    shutil.copy(ROOT / "matrix.toml", folder)
    (folder / "requirements-cpu.lock").write_text("a==1\n")
    (folder / "environment.py").write_text(MAKER)
    return folder


def call(program: Path, *arguments: str, cwd: Path = Path("/"), **environment: str) -> subprocess.CompletedProcess:
    environment = {"INVOKEW_PYTHON": sys.executable, **environment}
    return subprocess.run([program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def times_made(checkout: Path) -> int:
    made = checkout / "made"
    return len(made.read_text().splitlines()) if made.exists() else 0


def test_arguments_folder_and_exit_code_are_handed_on(checkout, tmp_path):
    done = call(checkout / "invokew", "train", "--set", "a='b c'", "", cwd=tmp_path)
    assert done.returncode == 7
    where, arguments = done.stdout.splitlines()
    assert where == str(tmp_path)  # relative paths mean what they say where the command is typed
    assert arguments == f"<{checkout}/cli.py><train><--set><a='b c'><>"


def test_it_makes_the_environment_once(checkout):
    for _ in range(3):
        call(checkout / "invokew")
    assert times_made(checkout) == 1


@pytest.mark.parametrize("file", ["requirements-cpu.lock", "matrix.toml", "environment.py"])
def test_a_change_makes_it_stale(checkout, file):
    call(checkout / "invokew")
    with open(checkout / file, "a") as handle:
        handle.write("# changed\n")
    call(checkout / "invokew")
    assert times_made(checkout) == 2


def test_a_checkout_that_moved_is_stale(checkout):
    call(checkout / "invokew")
    moved = checkout.rename(checkout.with_name("elsewhere"))
    call(moved / "invokew")
    assert times_made(moved) == 2


def test_a_python_that_is_gone_makes_it_stale(checkout):
    call(checkout / "invokew")
    (checkout / ".venv" / "bin" / "python").unlink()
    assert call(checkout / "invokew").returncode == 7
    assert times_made(checkout) == 2


def test_a_failed_set_up_ends_it(checkout):
    (checkout / "broken").touch()
    done = call(checkout / "invokew")
    assert done.returncode == 2
    assert done.stdout == ""


def test_through_symbolic_links(checkout, tmp_path):
    (checkout / "link").symlink_to("invokew")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "train it"
    link.symlink_to(checkout / "link")
    done = call(link, "x")
    assert f"<{checkout}/cli.py>" in done.stdout


def test_in_an_empty_environment(checkout):
    done = subprocess.run(["/usr/bin/env", "-i", f"INVOKEW_PYTHON={sys.executable}", checkout / "invokew"], cwd="/")
    assert done.returncode == 7


def test_without_the_right_python_it_says_what_to_install(checkout):
    matrix = (checkout / "matrix.toml").read_text()
    head, _, tail = matrix.partition("[cpu.components.python]")
    (checkout / "matrix.toml").write_text(head + "[cpu.components.python]" + tail.replace('"3.11"', '"3.99"', 2))
    done = call(checkout / "invokew", PATH=os.environ["PATH"])
    assert done.returncode == 2
    assert "needs Python 3.99" in done.stderr and "apt-get install python3.99 python3.99-venv" in done.stderr
    assert times_made(checkout) == 0


def test_an_incomplete_checkout(checkout):
    (checkout / "requirements-cpu.lock").unlink()
    done = call(checkout / "invokew")
    assert done.returncode == 2
    assert "expected requirements-cpu.lock beside invokew" in done.stderr


def test_it_is_plain_sh():
    """No construct of one shell only; dash is the strictest that is at hand."""
    shell = shutil.which("dash") or "sh"
    assert subprocess.run([shell, "-n", ROOT / "invokew"]).returncode == 0
    assert (ROOT / "invokew").read_text().startswith("#!/bin/sh\n")
    assert os.access(ROOT / "invokew", os.X_OK)
