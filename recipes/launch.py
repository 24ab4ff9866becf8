"""Starts a run under its guard and stops it again."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from errors import UserError
from recipes.command import Command
from recipes.compose import HOME
from recipes.rundir import RunDir

STOP_SECONDS = 19.0  # the guard's own limits add up to less


@dataclass
class Launched:
    """A started run. `status` is its exit status once it has ended, `left` what could not be stopped."""

    guard: subprocess.Popen
    pid: int | None = None
    status: int | None = None
    left: list[int] = field(default_factory=list)
    _events: bytes = b""

    def poll(self) -> int | None:
        """The run's exit status once its guard has cleaned up, else None."""
        self._listen()
        if self.guard.poll() is None:
            return None
        self._listen()
        if self.status is None:
            self.status = self.guard.returncode if self.guard.returncode >= 0 else 128 - self.guard.returncode
        return self.status

    def stop(self, at_once: bool = False) -> None:
        """Asks the guard to stop everything."""
        with contextlib.suppress(OSError):  # it may have ended by itself
            os.write(self.guard.stdin.fileno(), b"k" if at_once else b"s")

    def wait_stopped(self) -> bool:
        """Waits until everything has stopped; whether it did in time."""
        deadline = time.monotonic() + STOP_SECONDS
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.guard.poll() is not None and not self.left

    def _listen(self) -> None:
        """Takes in what the guard has said so far."""
        while select.select([self.guard.stdout], [], [], 0)[0]:
            data = os.read(self.guard.stdout.fileno(), 4096)
            if not data:
                break
            self._events += data
        *lines, self._events = self._events.split(b"\n")
        for event in map(json.loads, lines):
            self.pid = event.get("started", self.pid)
            self.status = event.get("ended", self.status)
            self.left = event.get("left", self.left)
            if "failed" in event:
                raise UserError(f"expected to start the run, found: {event['failed']}")


def start(command: Command, run: RunDir, scratch: Path) -> Launched:
    """Starts the command under a guard, its output going to the run's log."""
    order = {
        "command": command.arguments,
        "env": command.environment(),
        "cwd": str(command.folder),
        "log": str(run.log),
        "scratch": str(scratch),
        "keep": str(run.path / "ray-logs"),
    }
    guard = subprocess.Popen(
        [sys.executable, "-E", "-S", "-m", "recipes.guard"],
        cwd=HOME,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # Ctrl-C on the terminal reaches the launcher alone
        pass_fds=[run.lock],
    )
    data = json.dumps(order).encode()
    guard.stdin.write(b"%08d" % len(data))
    view = memoryview(data)
    while view:
        view = view[guard.stdin.write(view) :]
    return Launched(guard)
