"""How long a run that is alive has printed nothing: told from its directory's lock and the age of its log."""

import fcntl
import os
import time
from pathlib import Path

LOCK = ".lock"  # held by what the run started, see recipes/rundir.py


def silent_seconds(folder: Path, log: Path) -> float | None:
    """Seconds since the log last grew; None where no run holds the folder's lock."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return max(0.0, time.time() - log.stat().st_mtime)
    finally:
        os.close(descriptor)
    return None
