"""verl's checkpoints of a run: which are complete, what is wrong with the others.

verl 0.6.0 writes a step's folder in this order (megatron_checkpoint_manager.py, ray_trainer.py): Megatron's
`common.pt`, the shards `*.distcp`, their index `.metadata`, Megatron's `metadata.json`, tokenizer and configs, the
dataloader's `data.pt`, and at last, in the parent folder, `latest_checkpointed_iteration.txt`. A step's folder that
lacks a part, or where a part is shorter than the index says, is half-written. Nothing here imports torch and
nothing is ever deleted.
"""

import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"
PREFIX = "global_step_"


@dataclass(frozen=True)
class Checkpoint:
    """A step's folder and what keeps it from being complete."""

    folder: Path
    step: int
    faults: tuple[str, ...]


def inspect(folder: Path) -> list[Checkpoint]:
    """All checkpoints in a folder, the newest first."""
    found = []
    for path in folder.glob(f"{PREFIX}*") if folder.is_dir() else ():
        number = path.name.removeprefix(PREFIX)
        if path.is_dir() and number.isdecimal():
            found.append(Checkpoint(path, int(number), tuple(faults(path))))
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def latest(checkpoints: list[Checkpoint]) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """The newest complete checkpoint and the newer, half-written ones that are passed over."""
    skipped = []
    for checkpoint in checkpoints:
        if not checkpoint.faults:
            return checkpoint, skipped
        skipped.append(checkpoint)
    return None, skipped


def faults(folder: Path) -> Iterator[str]:
    """What a step's folder lacks to be loaded; nothing when it is complete."""
    yield from _model_faults(folder / "actor")
    if (folder / "critic").is_dir():
        yield from _model_faults(folder / "critic")
    yield from _archive_faults(folder / "data.pt")


def point_to(folder: Path, checkpoint: Checkpoint) -> None:
    """Makes verl's tracker file name this checkpoint: verl reads it first and stops on one it cannot read."""
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{TRACKER}-", delete=False) as file:
        file.write(str(checkpoint.step))
    os.chmod(file.name, 0o644)
    os.replace(file.name, folder / TRACKER)


def distributed_faults(folder: Path) -> Iterator[str]:
    """What a folder in Megatron's distributed format (`torch_dist`) lacks."""
    try:
        described = json.loads((folder / "metadata.json").read_text())
        if not isinstance(described, dict) or "sharded_backend" not in described:
            yield f"{folder.name}/metadata.json names no sharded_backend"
    except OSError:
        yield f"{folder.name}/metadata.json is missing"
    except ValueError:
        yield f"{folder.name}/metadata.json is not JSON"
    yield from _archive_faults(folder / "common.pt")
    try:
        sizes = shard_sizes(folder / ".metadata")
    except OSError:
        yield f"{folder.name}/.metadata is missing"
        return
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        yield f"{folder.name}/.metadata cannot be read ({type(error).__name__})"
        return
    for name, size in sorted(sizes.items()):
        yield from _size_faults(folder / name, size)


def shard_sizes(index: Path) -> dict[str, int]:
    """For each shard file the bytes that the index of a torch distributed checkpoint says it holds at least."""
    with index.open("rb") as file:
        metadata = _Unpickler(file).load()
    sizes: dict[str, int] = {}
    for place in (metadata.state.get("storage_data") or {}).values():
        entry = place.state
        end = entry["offset"] + entry["length"]
        sizes[entry["relative_path"]] = max(sizes.get(entry["relative_path"], 0), end)
    return sizes


def _model_faults(folder: Path) -> Iterator[str]:
    if not (folder / "dist_ckpt").is_dir():
        yield f"{folder.name}/dist_ckpt is missing"
        return
    yield from (f"{folder.name}/{fault}" for fault in distributed_faults(folder / "dist_ckpt"))


def _archive_faults(file: Path) -> Iterator[str]:
    """torch.save writes a zip archive, whose directory comes last."""
    name = f"{file.parent.name}/{file.name}" if file.name != "data.pt" else file.name
    if not file.is_file():
        yield f"{name} is missing"
    elif not zipfile.is_zipfile(file):
        yield f"{name} is cut off"


def _size_faults(file: Path, size: int) -> Iterator[str]:
    try:
        found = file.stat().st_size
    except OSError:
        yield f"{file.parent.name}/{file.name} is missing"
        return
    if found < size:
        yield f"{file.parent.name}/{file.name} has {found} bytes of {size}"


class _Unpickler(pickle.Unpickler):
    """Reads a pickle's data without importing or running anything that it names."""

    def find_class(self, module: str, name: str) -> type:
        return _Named


class _Named:
    """Stands for an object of any class; keeps its state as a dict where it has one."""

    def __init__(self, *arguments: object, **named: object):
        self.arguments = arguments
        self.state: dict = named

    def __new__(cls, *arguments: object, **named: object):
        made = super().__new__(cls)
        made.arguments, made.state = arguments, named
        return made

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) == 2:  # (dict, slots)
            state = {**(state[0] or {}), **(state[1] or {})}
        self.state = state if isinstance(state, dict) else {"state": state}

    def __setitem__(self, key: object, value: object) -> None:
        self.state[key] = value

    def append(self, value: object) -> None:
        pass

    def extend(self, values: object) -> None:
        pass
