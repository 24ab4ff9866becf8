"""Where every thread of a process stands, on request: for runs without progress. A real torch_npu has no such module.

With NPU_EMULATOR_TRACE=FOLDER, SIGUSR2 writes the stacks of all threads to FOLDER/stacks/<pid>.txt.
"""

import faulthandler
import os
import signal

SIGNAL = signal.SIGUSR2
_file = None


def listen(folder: str) -> None:
    """Begin to listen, in this process; again after a fork, for a file of its own."""
    global _file
    folder = os.path.join(folder, "stacks")
    try:
        os.makedirs(folder, exist_ok=True)
        _file = open(os.path.join(folder, f"{os.getpid()}.txt"), "w")  # noqa: SIM115, open while the process lives
    except OSError:
        return  # no place for a trace must not end a run; the trace itself says so
    faulthandler.register(SIGNAL, file=_file, all_threads=True)
