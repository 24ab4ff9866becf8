"""The scratch folder: gone after the run, and with a way to the environment that a shell can read."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from errors import UserError
from recipes import command, scratch


@pytest.fixture
def made():
    folder = scratch.make()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_an_environment_below_a_special_path_is_used_through_the_link(made, tmp_path, monkeypatch):
    prefix = tmp_path / "a b; ü"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    (made / scratch.ENVIRONMENT).unlink()
    (made / scratch.ENVIRONMENT).symlink_to(prefix)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    python = scratch.python(made)
    shown = subprocess.run(["bash", "-c", f"exec {python} -c 'import sys; print(sys.prefix)'"], capture_output=True)
    assert shown.stdout.decode().strip() == str(made / scratch.ENVIRONMENT), shown.stderr
    shutil.rmtree(made)
    script = command.Command([python, "-c", "print(1 + 1)"], {}, Path("/"), made).script()
    by_hand = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert by_hand.stdout == "2\n", by_hand.stderr


def test_an_environment_below_a_plain_path_is_used_as_it_is(made, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/a-b_c/3.11+x/bin/python")
    assert scratch.python(made) == "/opt/a-b_c/3.11+x/bin/python"
    assert " ln " not in command.Command([sys.executable], {}, Path("/"), made).script()


@pytest.mark.parametrize("name", ["x" * 60, "a b", "ü"])
def test_another_temporary_folder_is_taken_where_ray_could_not_use_it(monkeypatch, tmp_path, name):
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: f"/tmp/{name}")
    monkeypatch.setattr(scratch.os, "access", lambda *_: True)
    assert scratch.place() == Path("/tmp")
    monkeypatch.setattr(scratch.os, "access", lambda *_: False)
    with pytest.raises(UserError, match="TMPDIR"):
        scratch.place()
