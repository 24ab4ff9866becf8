"""Killed at any step of writing, files are wholly old or wholly new after the next command."""

import os
import signal
import stat
import sys

import pytest

from patches import engine, journal
from patches.places import place
from tests.patches.samples import BOTH, FILES, contents

STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}


def killed_at(step: int, work) -> bool:
    """Runs `work` in a copy of this process that is killed before its step of that number; whether it was."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event, arguments):
            nonlocal count
            if event in STEPS and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def half(step: int, work) -> bool:
    """The same, but the step is a write of which half arrives."""

    def halving():
        count, real = 0, os.fsync

        def fsync(handle):
            nonlocal count
            count += stat.S_ISREG(os.fstat(handle).st_mode)
            if count == step:
                size = os.fstat(handle).st_size
                with open(f"/proc/self/fd/{handle}", "r+b") as file:
                    file.truncate(size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(handle)

        os.fsync = fsync
        work()

    return killed_at(0, halving)


@pytest.mark.parametrize("kill", [killed_at, half])
@pytest.mark.parametrize("way", ["apply", "revert"])
def test_a_killed_command_leaves_all_or_nothing(write, kill, way):
    root = write(FILES)
    here, before = place(root), contents(root)
    engine.apply(engine.judge([BOTH], here))
    after = upstream(root)
    work = (lambda: engine.apply(engine.judge([BOTH], here))) if way == "apply" else (lambda: engine.revert(here))
    seen, step = set(), 0
    while True:
        step += 1
        engine.revert(here)
        if way == "revert":
            engine.apply(engine.judge([BOTH], here))
        if not kill(step, work):
            break
        again = 0
        while True:  # the next command is killed, too, at each of its own steps
            again += 1
            if not killed_at(again, lambda: finish(root)):
                break
        finish(root)
        assert upstream(root) in (before, after)
        seen.add(upstream(root) == after)
        if upstream(root) == before:
            assert not (root / journal.FOLDER).exists(), "nothing is left behind"
    assert step > 3 and seen == {True, False}


def finish(root) -> None:
    with journal.lock(root):
        pass


def upstream(root) -> dict[str, bytes]:
    """All files but the journal's."""
    return {name: text for name, text in contents(root).items() if not name.startswith(journal.FOLDER)}
