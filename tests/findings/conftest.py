"""Runs cases on real upstream code with the emulator: on the installed packages, and on the matrices' exact commits.

A test module says in STACKS on which stacks its fault shows; its tests get `stack`, and `on`, which calls a function of
the module in a process that has that stack. Exact commits are taken from UPSTREAM_ROOT, a folder with performance/ and
commercial/, each with checkouts as `invoke train --rehearse --root` takes them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.rehearsal.upstream import PACKAGES, REPOSITORIES
from tests.emulator.processes import environment

HERE = Path(__file__).parent
ROOT = os.environ.get("UPSTREAM_ROOT", "")
# What is imported before any case runs; the commercial matrix does not import: F16.
IMPORTED = {"installed": ["worker_imports"], "performance": ["worker_imports"], "commercial": []}
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": 0,
    "VLLM_NO_USAGE_STATS": 1,
    "VLLM_ASCEND_ENABLE_NZ": 0,
    "HF_HUB_OFFLINE": 1,
    "TASK_QUEUE_ENABLE": 1,
    "NPU_EMULATOR_MEMORY_GIB": 2,
    "RAY_DISABLE_IMPORT_WARNING": 1,
}


def pytest_generate_tests(metafunc):
    """Each test once on each of its module's stacks."""
    if "stack" in metafunc.fixturenames:
        metafunc.parametrize("stack", metafunc.module.STACKS)


def pytest_collection_modifyitems(items):
    """The first case on a stack waits for its imports, some 15 s: none of them is for a quick look."""
    for item in items:
        if item.path.is_relative_to(HERE) and "on" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


class Server:
    """The process of server.py for one stack."""

    def __init__(self, stack: str, log: Path):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), *IMPORTED[stack]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            env=environment(**VARIABLES, PYTHONPATH=os.pathsep.join([environment()["PYTHONPATH"], *paths(stack)])),
            text=True,
        )

    def ask(self, **request) -> list[dict]:
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            raise AssertionError(f"the server of the stack ended:\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def paths(stack: str) -> list[str]:
    """Folders of the stack's sources; none where it is what is installed."""
    if stack == "installed":
        return []
    folder = Path(ROOT) / stack
    return [str(path) for name in (*REPOSITORIES, PACKAGES) if (path := folder / name).is_dir()]


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Stack -> its server; started when first asked for."""
    started = {}

    def get(stack):
        if stack not in started:
            started[stack] = Server(stack, tmp_path_factory.mktemp("findings") / f"{stack}.log")
        return started[stack]

    yield get
    for server in started.values():
        server.close()


@pytest.fixture
def on(servers, stack, request):
    """Calls a function of the test's module on the stack; what it returned, a list where `ranks` are asked for."""
    if stack != "installed" and not (ROOT and paths(stack)):
        pytest.skip(f"UPSTREAM_ROOT names no folder with {stack}/: checkouts of that matrix's commits")

    def call(function, *arguments, ranks=None, **variables):
        server = servers(stack)
        answers = server.ask(
            file=request.module.__file__,
            function=function.__name__,
            arguments=[str(one) if isinstance(one, Path) else one for one in arguments],
            ranks=ranks or 1,
            environment={name: str(value) for name, value in variables.items()},
        )
        faults = [answer["error"] for answer in answers if "error" in answer]
        assert not faults, f"{faults[0]}\n--- output of the stack ---\n{server.tail()}"
        values = [answer["value"] for answer in answers]
        return values if ranks else values[0]

    return call
