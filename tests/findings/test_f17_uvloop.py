"""F17: from uvloop 0.22 on the main thread has no event loop, which verl's synchronous rollouts ask for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.processes import run

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
try:
    print(uvloop.__version__, type(asyncio.get_event_loop()).__module__)
except RuntimeError as error:
    print(uvloop.__version__, error)
"""


def asked(**environment):
    """uvloop's version and what verl's way to its loop gives in a fresh main thread."""
    version, answer = run(PROGRAM, **environment).stdout.strip().split(maxsplit=1)
    return tuple(map(int, version.split(".")[:2])), answer


def test_the_locked_one_has_a_loop():
    version, answer = asked()
    assert version < (0, 22) and answer == "uvloop"


def test_the_lock_holds_it():
    (locked,) = re.findall(r"^uvloop==(\S+)", (ROOT / "requirements-cpu.lock").read_text(), re.MULTILINE)
    assert locked.startswith("0.21.")


@pytest.mark.network
def test_a_later_one_has_none(tmp_path):
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(tmp_path), "uvloop==0.22.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"the package index gave no uvloop 0.22.1: {done.stderr.strip()[-200:]}")
    version, answer = asked(PYTHONPATH=tmp_path)
    assert version == (0, 22) and answer == "There is no current event loop in thread 'MainThread'."
