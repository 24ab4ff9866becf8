"""The run directory: whole or not there, and never two launchers in one."""

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest

from errors import UserError
from recipes import rundir

FILES = {rundir.CONFIG: "a: 1\n", rundir.LOG: ""}


def test_it_is_made_whole_and_holds_its_lock(tmp_path):
    path = tmp_path / "deep" / "run"
    with rundir.create(path, FILES) as run:
        assert run.path == path and (path / rundir.CONFIG).read_text() == "a: 1\n"
        assert sorted(os.listdir(tmp_path / "deep")) == ["run"]
        with pytest.raises(UserError, match=f"process {os.getpid()} holds it"), rundir.reopen(path):
            pass
    with rundir.reopen(path):
        pass


def test_an_empty_folder_is_taken_over(tmp_path):
    with rundir.create(tmp_path, FILES) as run:
        assert run.path == tmp_path and (tmp_path / rundir.CONFIG).is_file()


def test_two_at_once_make_one(tmp_path):
    path = tmp_path / "run"
    with rundir.create(path, FILES):
        second = rundir.create(path, FILES)
        with pytest.raises(UserError, match="another run has just made it"):
            second.__enter__()
    assert sorted(os.listdir(tmp_path)) == ["run"]


@contextmanager
def a_full_disk(size: int):
    """No file grows beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("files", [{"a": "12345"}, {"a": "1", "b": "12345"}])
def test_a_full_disk_leaves_nothing_behind(tmp_path, files):
    with (
        pytest.raises(UserError, match="File too large"),
        rundir.explained(tmp_path),
        a_full_disk(4),
        rundir.create(tmp_path / "run", files),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_replacing_a_file_on_a_full_disk_keeps_the_old_one(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("old")
    with pytest.raises(OSError), a_full_disk(4):
        rundir.write(file, "new and longer")
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["config.yaml"]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "make it writable"),
        (errno.EACCES, "make it writable"),
        (errno.ENAMETOOLONG, "name another place"),
    ],
)
def test_a_place_that_cannot_be_written_is_explained(tmp_path, number, advice):
    with pytest.raises(UserError) as caught, rundir.explained(tmp_path):
        raise OSError(number, os.strerror(number))
    message = str(caught.value)
    assert os.strerror(number) in message and advice in message and str(tmp_path) in message
    assert len(message.splitlines()) == 1


def test_the_lock_outlives_the_launcher_while_its_guard_lives(tmp_path):
    with rundir.create(tmp_path / "run", FILES) as run:
        guard = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[run.lock])
    with pytest.raises(UserError, match="alive"), rundir.reopen(tmp_path / "run"):
        pass
    guard.communicate(b"\n")
    with rundir.reopen(tmp_path / "run"):
        pass


def test_default_places_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.setattr(rundir, "HOME", tmp_path)
    monkeypatch.setattr(rundir.time, "strftime", lambda _: "20250101-000000")
    made = []
    for _ in range(3):
        made.append(rundir.default("toy"))
        made[-1].mkdir(parents=True)
    assert [path.name for path in made] == [f"toy-20250101-000000{end}" for end in ("", "-2", "-3")]
