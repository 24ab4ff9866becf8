"""Runs Python in processes of its own with the emulated NPU on their path: what must not happen in pytest's process."""

import os
import socket
import subprocess
import sys

from emulator import site

TIMEOUT = 120


def environment(**extra):
    """This process's environment with the emulator on the path, and `extra`; None removes a variable."""
    values = {**os.environ, "PYTHONPATH": str(site.ensure()), "OMP_NUM_THREADS": "1", **extra}
    return {name: str(value) for name, value in values.items() if value is not None}


def run(code, *arguments, check=True, timeout=TIMEOUT, **extra):
    """Run a piece of code; returns the finished process with its output as text."""
    return finish(start(code, *arguments, **extra), check, timeout)


def run_ranks(code, ranks, *arguments, timeout=TIMEOUT, **extra):
    """Run the code once a rank, with torchrun's variables; returns the finished processes in the order of ranks."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    started = [start(code, *arguments, **group, RANK=i, LOCAL_RANK=i, **extra) for i in range(ranks)]
    return [finish(process, True, timeout) for process in started]


def start(code, *arguments, **extra):
    """Start a piece of code, or a file where `code` is a path."""
    command = [sys.executable, str(code)] if str(code).endswith(".py") else [sys.executable, "-c", code]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, check=True, timeout=TIMEOUT):
    """Wait for a started process; an exit code other than 0 fails the test with the process's output."""
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"no end after {timeout} s\n{output[-2000:]}\n{errors[-4000:]}") from None
    assert not check or process.returncode == 0, f"exit code {process.returncode}\n{output[-2000:]}\n{errors[-4000:]}"
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
