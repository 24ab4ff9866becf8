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
import traceback
from pathlib import Path

TIMEOUT = 300  # seconds of a case


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
        return [_collect(pid, file) for pid, file in zip(children, files, strict=True)]


def _fork(request: dict, group: dict, file: Path) -> int:
    """Starts a child, which leads a process group of its own and writes its answer into a file."""
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
    file.write_text(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)


def _renew_device() -> None:
    """Lets this child use the emulated device, with its own environment: imports only counted the devices."""
    from torch_npu.npu import devices

    devices._pid, devices._bad_fork = None, False


def _function(request: dict):
    spec = importlib.util.spec_from_file_location(Path(request["file"]).stem, request["file"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, request["function"])


def _collect(pid: int, file: Path) -> dict:
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what the child started and left
    if file.exists():
        return json.loads(file.read_text())
    return {"error": f"ended without an answer: {os.waitstatus_to_exitcode(status)}"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # for the cases' shared `tiny`
    main(*sys.argv[1:])
