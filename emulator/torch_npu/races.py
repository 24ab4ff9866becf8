"""What is said of a race between streams: the device's text, and where in Python the second of the two operators is.

The device finds them (races.cpp); see its switch in `settings`.
"""

import contextlib
import os
import sys
import traceback

import npu_device
import torch

from . import settings

FRAMES = 3  # innermost calls that are printed
_NOT_OF_THE_PROGRAM = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.abspath(__file__)) + os.sep)


def activate() -> None:
    """Switch the detector as the environment asks for it. Called once, when the device is first used."""
    npu_device.set_races(settings.race_level(), report)


def report(text: str) -> None:
    """Print what the device found, once for each pair of operators."""
    print(f"NPU emulator: {text}\n{place()}", file=sys.stderr, flush=True)


def place() -> str:
    """The innermost calls of the program, one a line, the last first; torch's and the emulator's own are left out."""
    calls = [c for c in traceback.extract_stack() if not c.filename.startswith(_NOT_OF_THE_PROGRAM)]
    lines = [f"  at {c.filename}:{c.lineno} in {c.name}" for c in reversed(calls[-FRAMES:])]
    return "\n".join(lines) or "  in a thread without Python, such as the backward pass"


def fence() -> None:
    """Everything on all devices counts as done. A capture begins and ends so: what it runs, a device only notes."""
    if npu_device.races_on():
        npu_device.order_streams()


@contextlib.contextmanager
def named(name: str):
    """Uses by operators inside, of this thread, go by this name; with an empty one they are not noted."""
    before = npu_device.rename_uses(name)
    try:
        yield
    finally:
        npu_device.rename_uses(before)
