"""How facts are read: guarded, side by side, each within its time. Python 3.9, standard library."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SECTION_SECONDS = 1.8  # a file system that does not answer must not hold up the rest
STEP_SECONDS = 0.2  # by which what is inside must be done earlier than what is around it

ROOT = ""  # in front of every path of the machine


def at(path: str) -> Path:
    """A place on this machine."""
    return Path(ROOT + path)


def unknown(reason: object) -> dict[str, str]:
    """What stands in the place of a fact that cannot be read."""
    return {"unknown": str(reason)}


def is_unknown(fact: object) -> bool:
    """Whether a fact could not be read."""
    return isinstance(fact, dict) and fact.keys() == {"unknown"}


def guarded(read: Callable[..., object], *arguments: object) -> object:
    """A fact, or why it is unknown."""
    try:
        return read(*arguments)
    except Exception as error:  # whatever it is, it must not cost the other facts
        return unknown(f"{type(error).__name__}: {error}")


def side_by_side(reads: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, object]:
    """The results by name; `unknown` where one is not there in time. A thread that hangs keeps nothing alive."""
    results: dict[str, object] = {name: unknown(f"not read within {seconds:g} s") for name in reads}

    def work(name: str) -> None:
        results[name] = guarded(reads[name])

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in reads]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(results)


def text_of(path: str | Path, limit: int = 1 << 20) -> str:
    """The start of a file, whatever bytes are in it."""
    with open(path, "rb") as file:
        return file.read(limit).decode("utf-8", "replace")


def first_line(*command: str, seconds: float) -> str:
    """The first line of what a command prints."""
    return output(*command, seconds=seconds).partition("\n")[0]


def output(*command: str, seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints. Raises with the reason where it is missing, fails or takes too long."""
    environment = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **(environment or {})}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # the whole group: a child that holds the pipe would keep us waiting
            os.killpg(process.pid, signal.SIGKILL)
            raise RuntimeError(f"{command[0]} did not end within {seconds:g} s") from None
    if process.returncode:
        said = (err.strip() or out.strip()).partition("\n")[0]
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {said}")
    return out.strip()
