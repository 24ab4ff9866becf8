"""The run directory: what a run consists of on disk, written whole or not at all, and held by one launcher at a time.

config.yaml    the composed recipe         command         what was started, for a shell
env.json       its environment             matrix.json     the versions it asks for
patches.json   those on its packages       facts.json      the machine it ran on
train.log      all that the run printed    metrics.jsonl   one object a step
trace/         operator calls of the emulated devices      checkpoints/   verl's
ray-logs/      Ray's own logs, after a failure
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from errors import UserError, unwritable
from recipes.compose import HOME

CONFIG, COMMAND, ENVIRONMENT, MATRIX, FACTS = "config.yaml", "command", "env.json", "matrix.json", "facts.json"
PATCHES = "patches.json"
LOG, METRICS, LOCK = "train.log", "metrics.jsonl", ".lock"


@dataclass(frozen=True)
class RunDir:
    """A run directory and the lock that this process holds on it."""

    path: Path
    lock: int  # descriptor; the guard inherits it, so that the directory is free only once everything has stopped

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


def default(recipe: str) -> Path:
    """A path for a new run that does not exist yet."""
    path = HOME / "runs" / f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    count = 1
    while path.exists():
        count += 1
        path = path.with_name(f"{path.name.removesuffix(f'-{count - 1}') if count > 2 else path.name}-{count}")
    return path


def is_run(path: Path) -> bool:
    """Whether an earlier run lives there. UserError for a place that holds something else."""
    if not path.exists():
        return False
    if not path.is_dir():
        raise UserError(f"--run-dir {path}: expected a folder, found a file; name another path")
    if (path / CONFIG).is_file():
        return True
    if any(entry.name != LOCK for entry in path.iterdir()):
        raise UserError(
            f"--run-dir {path}: expected an earlier run (with {CONFIG}) or an empty or new folder, "
            f"found a folder with other things in it; name another path"
        )
    return False


@contextmanager
def create(path: Path, files: Mapping[str, str]) -> Iterator[RunDir]:
    """A new run directory with these files. It is made beside its place and renamed: never there in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        os.chmod(partial, 0o755)
        for name, text in files.items():
            (partial / name).write_text(text)
        for folder in ("checkpoints", "trace"):
            (partial / folder).mkdir()
        lock = _lock(partial)
        try:
            (path / LOCK).unlink(missing_ok=True)  # an empty folder is taken over
            os.rename(partial, path)
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise UserError(
                    f"--run-dir {path}: expected a new folder, found that another run has just made it; name another"
                ) from error
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    with _held(RunDir(path, lock)) as run:
        yield run


@contextmanager
def reopen(path: Path) -> Iterator[RunDir]:
    """An earlier run's directory, locked. UserError where its run is alive."""
    with _held(RunDir(path, _lock(path))) as run:
        yield run


def update(run: RunDir, files: Mapping[str, str]) -> None:
    """Replaces files of the run, each in one step."""
    for name, text in files.items():
        write(run.path / name, text)


def write(path: Path, text: str) -> None:
    """Writes a file in one step: readers see the old text or the new one."""
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except OSError:
        Path(partial).unlink(missing_ok=True)
        raise


def as_json(value: object) -> str:
    """A document as the run directory keeps it."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=str) + "\n"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what goes wrong while a run is written to `path` into a message."""
    try:
        yield
    except OSError as error:
        raise unwritable(error, path, "--run-dir DIR") from error


@contextmanager
def _held(run: RunDir) -> Iterator[RunDir]:
    try:
        yield run
    finally:
        os.close(run.lock)


def _lock(folder: Path) -> int:
    """Takes the lock of a run directory or says who has it."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise UserError(
            f"--run-dir {folder}: expected a run that has ended, found it alive: process {holder} holds it; "
            f"wait for its end, stop it with `kill -INT {holder}`, or name another folder"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
