"""A process on the emulator that has imported a stack, and forks a child for each case: imports are paid once.

`python server.py MODULES...` reads a request a line and answers with a line, both JSON. A request is {file, function,
arguments, ranks, environment}: the function of that file is called in `ranks` children, each with torchrun's variables;
the answer is the list of {"value": what it returned} or {"error": traceback or signal}. What a case changes dies with
its child.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

TIMEOUT = 900  # seconds of a case: some on an idle machine, many times that on a crowded one
PAUSE = 0.02


def main(*modules: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the stack prints does not mix with the answers
    importlib.import_module("torch")  # loads the emulator
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=replies, flush=True)
    os._exit(0)  # what was imported has nothing to save


def _answer(request: dict) -> list[dict]:
    ranks = request["ranks"]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(rank)) for rank in range(ranks)]
        children = [
            _fork(request, group | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, file)
            for rank, file in enumerate(files)
        ]
        codes = _wait(children, files)
        return [_read(file, code) for file, code in zip(files, codes, strict=True)]


def _fork(request: dict, group: dict, file: Path) -> int:
    """Starts a child, which leads a process group of its own, writes its answer into a file and waits for its end.

    No rank ends before the others have answered: they may still be talking to it.
    """
    if pid := os.fork():
        return pid
    os.setsid()
    signal.alarm(TIMEOUT)
    os.environ.update(group | request["environment"])
    _renew_device()
    try:
        answer = {"value": _function(request)(*request["arguments"])}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    sys.stderr.flush()
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(answer))
    unfinished.rename(file)
    while True:
        signal.pause()


def _renew_device() -> None:
    """Lets this child use the emulated device, with its own environment: imports only counted the devices."""
    from torch_npu.npu import devices

    devices._pid, devices._bad_fork = None, False


def _function(request: dict):
    spec = importlib.util.spec_from_file_location(Path(request["file"]).stem, request["file"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, request["function"])


def _wait(children: list[int], files: list[Path]) -> list[int]:
    """Until each child has answered or died; then ends them with all that they started. Their exit codes."""
    while any(not file.exists() and _runs(pid) for pid, file in zip(children, files, strict=True)):
        time.sleep(PAUSE)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def _runs(pid: int) -> bool:
    """Whether a child has not ended; it stays there to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _read(file: Path, code: int) -> dict:
    return json.loads(file.read_text()) if file.exists() else {"error": f"ended without an answer: exit code {code}"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # for the cases' shared `tiny`
    main(*sys.argv[1:])
