"""Writes many files as one: after a kill at any moment the next command finds all of them old or all of them new.

Under `HOME/.patches/`:

    contents/SHA   bytes before and after, by their sha256
    intent.json    files that are being written; there from the moment on at which the change counts
    journal.json   files that differ from upstream: hash before (null: was not there) and after

First the contents are stored, then `intent.json` appears at once (rename), then file after file is replaced, then the
journal, then `intent.json` goes. A command that finds `intent.json` finishes what it says; without it nothing began.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from errors import UserError, unwritable

FOLDER = ".patches"
_TEMPORARY = ".patches-new"  # what is being written, beside its target, so that the rename stays in one file system


@dataclass
class Entry:
    """A file: hash before and after; None: not there."""

    before: str | None
    after: str | None


@dataclass
class Journal:
    home: Path
    patches: list[str] = field(default_factory=list)
    files: dict[Path, Entry] = field(default_factory=dict)

    def original(self, path: Path) -> bytes | None:
        """The bytes of a file before it was patched."""
        return _content(self.home, self.files[path].before)

    def is_intact(self, path: Path) -> bool:
        """Whether a file is as it was left."""
        return path in self.files and digest(read(path)) == self.files[path].after


def load(home: Path) -> Journal:
    """The journal; empty where nothing is patched."""
    path = home / FOLDER / "journal.json"
    try:
        return _journal(home, json.loads(path.read_text()))
    except FileNotFoundError:
        return Journal(home)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(
            f"{path}: expected the journal of patches, found something else ({error}); put the packages back by "
            "installing them anew, then remove the folder"
        ) from None


def write(home: Path, changes: dict[Path, bytes | None], patches: list[str]) -> None:
    """Gives every file its new content (None removes it) and records it, all or nothing."""
    journal = load(home)
    files = dict(journal.files)
    work = {}
    try:
        for path, content in changes.items():
            current = read(path)
            before = files[path].before if path in files and journal.is_intact(path) else _store(home, current)
            after = _store(home, content)
            work[path] = Entry(digest(current), after)
            files[path] = Entry(before, after)
        files = {path: entry for path, entry in files.items() if entry.before != entry.after}
        kept = {"patches": patches, "files": _listed(home, files)}
        _put(home / FOLDER / "intent.json", _json({"work": _listed(home, work), "journal": kept}))
        recover(home)
    except OSError as error:
        raise unwritable(error, Path(error.filename or home)) from None


def recover(home: Path) -> bool:
    """Finishes what a killed command had begun; whether there was something."""
    intent = home / FOLDER / "intent.json"
    try:
        given = json.loads(intent.read_text())
    except FileNotFoundError:
        return False
    for path, entry in _journal(home, {"files": given["work"], "patches": []}).files.items():
        _finish(home, path, entry)
    record = home / FOLDER / "journal.json"
    if given["journal"]["files"]:
        _put(record, _json(given["journal"]))
    else:
        record.unlink(missing_ok=True)
    intent.unlink()
    _sync(intent.parent)
    _sweep(home)
    return True


@contextlib.contextmanager
def lock(home: Path) -> Iterator[None]:
    """One command at a time; finishes first what a killed one had begun."""
    folder = home / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        with open(folder / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{home}: another command is patching it, expected none; wait until it ends") from None
            recover(home)
            _sweep(home)
            yield
            if not (folder / "journal.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise unwritable(error, Path(error.filename or home)) from None


def digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _finish(home: Path, path: Path, entry: Entry) -> None:
    """Brings one file to its state after; twice is once."""
    found = digest(read(path))
    if found not in (entry.before, entry.after):
        raise UserError(
            f"{path}: expected the file as it was when a patching command was interrupted, or as it leaves it, found "
            f"another one; put it back (install the package anew) and remove {home / FOLDER}"
        )
    temporary = path.with_name(path.name + _TEMPORARY)
    if found != entry.after and entry.after is None:
        path.unlink()
    elif found != entry.after:
        _write(temporary, _content(home, entry.after))
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    temporary.unlink(missing_ok=True)
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        stale.unlink(missing_ok=True)
    _sync(path.parent)


def _sweep(home: Path) -> None:
    """Drops contents that the journal does not name."""
    named = {name for entry in load(home).files.values() for name in (entry.before, entry.after)}
    for path in (home / FOLDER / "contents").glob("*"):
        if path.name not in named:
            path.unlink()


def _store(home: Path, content: bytes | None) -> str | None:
    if content is None:
        return None
    name = digest(content)
    if _known(home, name) is None:
        _put(home / FOLDER / "contents" / name, content)
    return name


def _content(home: Path, name: str | None) -> bytes | None:
    if name is None:
        return None
    content = _known(home, name)
    if content is None:
        where = home / FOLDER / "contents" / name
        raise UserError(f"{where}: expected the bytes of that hash, found others or nothing; install the package anew")
    return content


def _known(home: Path, name: str) -> bytes | None:
    content = read(home / FOLDER / "contents" / name)
    return content if digest(content) == name else None


def _put(path: Path, content: bytes) -> None:
    """A file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + _TEMPORARY)
    _write(temporary, content)
    os.replace(temporary, path)
    _sync(path.parent)


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _json(given: dict) -> bytes:
    return (json.dumps(given, indent=1) + "\n").encode()


def _listed(home: Path, files: dict[Path, Entry]) -> list[dict]:
    """Paths below home are relative, so that a folder can be moved."""
    return [
        {"path": str(p.relative_to(home) if p.is_relative_to(home) else p), "before": e.before, "after": e.after}
        for p, e in files.items()
    ]


def _journal(home: Path, given: dict) -> Journal:
    files = {home / row["path"]: Entry(row["before"], row["after"]) for row in given["files"]}
    return Journal(home, given["patches"], files)
