"""Where the processes of a run stand: asked of those on emulated devices, which write it into the run's trace."""

import contextlib
import signal
import time
from pathlib import Path

import psutil

SIGNAL = signal.SIGUSR2  # emulator/torch_npu/stacks.py listens
SECONDS = 3.0  # for all of them to answer


def ask(trace: Path) -> None:
    """Asks each process that has announced itself in `trace`, and gives them a moment to answer."""
    for file in (trace / "stacks").glob("*.txt"):
        with contextlib.suppress(ValueError, psutil.Error):  # gone in the meantime
            process = psutil.Process(int(file.stem))
            if process.environ().get("NPU_EMULATOR_TRACE") == str(trace):  # else another process by the same number
                process.send_signal(SIGNAL)
    time.sleep(SECONDS)


def innermost(trace: Path) -> dict[str, str]:
    """For each process that answered, the innermost line of the thread that stood at the end of its answer: Python's
    main thread, which faulthandler writes last."""
    found = {}
    for file in sorted((trace / "stacks").glob("*.txt")):
        threads = [part for part in file.read_text(errors="replace").split("\n\n") if "File " in part]
        if threads:
            line = next(line for line in threads[-1].splitlines() if "File " in line)
            found[file.stem] = line.strip()
    return found
