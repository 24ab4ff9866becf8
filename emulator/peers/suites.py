"""A peer's tests: where they are in its tree, and the process that runs one file of them on the emulated NPU."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from emulator import site
from emulator.peers import models

RECORDER = Path(__file__).with_name("record.py")
BROKEN = ("failed", "hung", "died")
_running: set[subprocess.Popen] = set()


@dataclasses.dataclass(frozen=True)
class Suite:
    """One peer's tests. Paths are relative to the root that holds the trees.

    tree     the peer's source tree; `folder` is the tests' top folder in it
    files    patterns of test files, relative to the tree
    path     source trees that are importable, the first wins
    preload  modules that ranks of a test inherit instead of importing them (start method forkserver)
    models   name of a model on the hub -> architecture: a tiny one with random weights stands where the tests run
    entry_points  group -> entry points that the peer's installation would have declared
    """

    name: str
    tree: str
    folder: str
    files: tuple[str, ...]
    path: tuple[str, ...]
    preload: tuple[str, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    models: dict[str, str] = dataclasses.field(default_factory=dict)
    entry_points: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def discover(self, root: Path) -> list[str]:
        """Test files, relative to the tree."""
        tree = root / self.tree
        return sorted({str(path.relative_to(tree)) for pattern in self.files for path in tree.glob(pattern)})


@dataclasses.dataclass(frozen=True)
class Setting:
    """How one file is run where it differs. Patterns are of test names, as fnmatch has them.

    run_skipped  tests whose skip marks are taken off
    leave_out    patterns of tests that are not run
    ranks        most ranks of a test of MindSpeed's class DistributedTest
    seconds      time limit of the file
    replace      text of the file -> what stands for it in the copy that is run: smaller sizes, where a name is now
    arguments    command line (sys.argv) that the file and its ranks find, as MindSpeed's adaptor reads it
    """

    run_skipped: str = ""
    leave_out: tuple[str, ...] = ()
    ranks: int = 0
    seconds: float = 0
    replace: dict[str, str] = dataclasses.field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outcome:
    """What one file did. tests: name -> (outcome, message); outcomes: passed, failed, skipped, hung, died, left out."""

    suite: str
    file: str
    tests: dict[str, tuple[str, str]]
    seconds: float

    def count(self, *outcomes: str) -> int:
        """Tests with one of the outcomes."""
        return sum(outcome in outcomes for outcome, _ in self.tests.values())

    def selected(self, pattern: str) -> list[str]:
        """Names of the tests that the pattern selects."""
        return [name for name in self.tests if fnmatch.fnmatchcase(name, pattern)]

    @property
    def is_whole(self) -> bool:
        """Whether every test got its turn."""
        return not self.count("hung", "died")


def run(
    suite: Suite, file: str, root: Path, limit: float, setting: Setting, extra: Iterable = (), log: Path | None = None
) -> Outcome:
    """Run one file in a process of its own, in a folder of its own, for at most `limit` seconds.

    extra: further folders on PYTHONPATH. log: where the process's output is kept.
    """
    limit = setting.seconds or limit
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        _furnish(work, suite, root)
        _replace(work, suite, file, setting.replace)
        begun = time.monotonic()
        with (log or work / "log").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "peers_record", "-p", "no:cacheprovider", "-v", file],
                cwd=work,
                env=_environment(suite, setting, root, work, extra),
                stdout=output,
                stderr=output,
                process_group=0,  # not a session: vllm-ascend's tests make groups of their own
            )
            ended = _finish(process, limit)
        return Outcome(suite.name, file, _read(work / "record.jsonl", ended, limit), time.monotonic() - begun)


def _furnish(work: Path, suite: Suite, root: Path) -> None:
    """What lies around the tests: themselves, the plugin, the models, the entry points of an installed package."""
    (work / suite.folder).symlink_to((root / suite.tree / suite.folder).resolve())
    (work / "peers_record.py").symlink_to(RECORDER)
    for name, architecture in suite.models.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).symlink_to(models.folder(architecture))
    if suite.entry_points:
        info = work / f"{suite.name.replace('-', '_')}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {suite.name}\nVersion: 0\n")
        lines = [line for group, points in suite.entry_points.items() for line in (f"[{group}]", *points)]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _replace(work: Path, suite: Suite, file: str, texts: dict[str, str]) -> None:
    """Put a copy of the tests in the place of the link, with other texts in one file."""
    if not texts:
        return
    folder = work / suite.folder
    tree = folder.resolve()
    folder.unlink()
    shutil.copytree(tree, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (work / file).read_text()
    for old, new in texts.items():
        if old not in text:
            raise LookupError(
                f"{file}: expected {old!r}, which peers.yaml replaces by {new!r}; it is not there any more"
            )
        text = text.replace(old, new)
    (work / file).write_text(text)


@functools.cache
def _site() -> Path:
    return site.ensure()


def _environment(suite: Suite, setting: Setting, root: Path, work: Path, extra: Iterable) -> dict[str, str]:
    path = [_site(), work, *(root / tree for tree in suite.path), *extra]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(_site().parent / "peers-pycache"),  # nothing is written into the trees
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(work),
        "PYTEST_XDIST_WORKER": f"gw{random.randint(1, 30)}",  # MindSpeed's tests look for a free port from it
        "PEERS_RECORD": str(work / "record.jsonl"),
        "PEERS_PRELOAD": json.dumps(suite.preload),
        "PEERS_RUN_SKIPPED": setting.run_skipped,
        "PEERS_LEAVE_OUT": json.dumps(setting.leave_out),
        "PEERS_RANKS": str(setting.ranks),
        "PEERS_ARGUMENTS": json.dumps(setting.arguments),
        **suite.environment,
        **setting.environment,
    }


def _finish(process: subprocess.Popen, limit: float) -> int | None:
    """The exit code, None after the limit; whatever the process started and left behind ends with it."""
    _running.add(process)
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
        process.wait()
        _running.discard(process)


def _end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def stop() -> None:
    """End every file that is running: the command was told to stop."""
    for process in list(_running):
        _end(process)


def _read(record: Path, ended: int | None, limit: float) -> dict[str, tuple[str, str]]:
    """Test -> (outcome, message); a test that was begun and not ended hung or died with its process."""
    tests: dict[str, tuple[str, str]] = {}
    for line in record.read_text().splitlines() if record.exists() else ():
        row = json.loads(line)
        tests[row["test"]] = row["outcome"], row["message"]
    unfinished = ("hung", f"no end after {limit:g} s") if ended is None else ("died", f"exit code {ended}")
    found = {name: unfinished if outcome == "begun" else (outcome, text) for name, (outcome, text) in tests.items()}
    no_tests = 5  # pytest's exit code
    is_broken = ended is None or ended not in (0, 1, no_tests)
    if is_broken and not any(outcome in BROKEN for outcome, _ in found.values()):
        found["(process)"] = unfinished
    return found
