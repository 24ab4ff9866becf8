"""Makes and verifies what a recipe trains on: weights (Hugging Face's layout and Megatron's) and datasets.

Each folder carries a manifest with the size and SHA-256 of every file and the arguments it was made from. A folder
appears whole or not at all; one that is there and does not match its manifest is reported, never replaced.
"""

import errno
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from errors import UserError, unwritable
from recipes import keys, toy

HOME = Path(__file__).resolve().parent.parent
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Asset:
    """One folder: what it is made from, and the command that writes it into the folder given."""

    folder: Path
    arguments: dict
    command: Callable[[Path], list[str]]
    task: str  # the command line's verb that makes it


def weights(config: DictConfig) -> list[Asset]:
    """The model of the recipe and its Megatron checkpoint, in the order in which they are made."""
    root, arguments = _made_here(config, "model")
    model = root / "model"
    return [
        Asset(model, arguments, lambda out: _toy("model", out, arguments), "weights"),
        Asset(root / "megatron", arguments, lambda out: _converter(model, out, toy.extension(arguments)), "weights"),
    ]


def data(config: DictConfig) -> list[Asset]:
    """The dataset of the recipe, one parquet file a split."""
    root, arguments = _made_here(config, "data")
    return [Asset(root / "data", arguments, lambda out: _toy("data", out, arguments), "data")]


def make(assets: list[Asset], recipe: str, environment: dict[str, str], say: Callable[[str], None]) -> None:
    """Makes the folders that are missing; those that are there are verified.

    `environment` is that of a run of the recipe: the conversion runs on the same devices. `say` gets one line for each
    step. Raises UserError where a folder is damaged or cannot be made.
    """
    for asset in assets:
        if not asset.folder.exists():
            say(f"making {asset.folder}")
            if _make(asset, environment):
                continue
        found = list(faults(asset, recipe))
        if found:
            raise UserError("\n".join(found), code=1)
        say(f"{asset.folder} is complete")


def faults(asset: Asset, recipe: str) -> Iterator[str]:
    """What is wrong with a folder that is there, a message each; nothing when it is whole."""
    remedy = f"to make it anew: rm -r {shlex.quote(str(asset.folder))} && invoke {asset.task} --recipe {recipe}"
    try:
        recorded, arguments = _manifest(asset.folder / MANIFEST)
    except (OSError, ValueError, LookupError, TypeError) as error:
        yield f"{asset.folder}: expected a readable {MANIFEST}, found: {error}; {remedy}"
        return
    changed = ", ".join(f"{key} {old} (recipe: {new})" for key, old, new in keys.changes(arguments, asset.arguments))
    if changed:
        yield (
            f"{asset.folder}: expected what the recipe describes, found it made with {changed}; "
            f"name another folder with launch.assets, or, {remedy}"
        )
    for name, expected in recorded.items():
        found = _fingerprint(asset.folder / name)
        if found != expected:
            yield f"{asset.folder / name}: expected {_describe(expected)}, found {_describe(found)}; {remedy}"


def _made_here(config: DictConfig, kind: str) -> tuple[Path, dict]:
    arguments = OmegaConf.select(config, f"launch.{kind}")
    root = OmegaConf.select(config, "launch.assets")
    if arguments is None or root is None:
        where = {"model": "actor_rollout_ref.model.path", "data": "data.train_files and data.val_files"}[kind]
        raise UserError(
            f"expected launch.assets and launch.{kind} in the recipe, which say what to make; found none: "
            f"this recipe uses what {where} names. Put your own there."
        )
    return Path(root).absolute(), OmegaConf.to_container(arguments, resolve=True)


def _toy(kind: str, out: Path, arguments: dict) -> list[str]:
    return [sys.executable, "-m", "recipes.toy", kind, str(out), json.dumps(arguments)]


def _converter(model: Path, out: Path, extension: str | None) -> list[str]:
    """verl's own converter, which reads its modules from the environment of a run."""
    module = ["recipes.convert", extension] if extension else ["scripts.converter_hf_to_mcore"]
    return [sys.executable, "-m", *module, "--hf_model_path", str(model), "--output_path", str(out)]


def _manifest(file: Path) -> tuple[dict, dict]:
    """The files and the arguments that a manifest records. Raises ValueError, LookupError or TypeError for others."""
    manifest = json.loads(file.read_text())
    files, arguments = manifest["files"], manifest["arguments"]
    if not (files and isinstance(files, dict) and isinstance(arguments, dict)):
        raise ValueError("no list of files")
    for entry in files.values():
        if not (isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str)):
            raise ValueError("a file without size and SHA-256")
    return files, arguments


def _make(asset: Asset, environment: dict[str, str]) -> bool:
    """Writes beside the folder and renames, so that a killed command leaves nothing that looks complete.

    False where another command has made the folder in the meantime.
    """
    parent = asset.folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{asset.folder.name}-", dir=parent))
        os.chmod(partial, 0o755)
    except OSError as error:
        raise unwritable(error, parent, "launch.assets") from error
    try:
        _run(asset.command(partial), environment, partial)
        files = {path.name: _fingerprint(path) for path in sorted(partial.iterdir()) if path.is_file()}
        (partial / MANIFEST).write_text(json.dumps({"arguments": asset.arguments, "files": files}, indent=1))
        partial.rename(asset.folder)
        return True
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise unwritable(error, asset.folder, "launch.assets") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run(command: list[str], environment: dict[str, str], out: Path) -> None:
    path = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), str(HOME)]))
    finished = subprocess.run(
        command, cwd=out.parent, env={**environment, "PYTHONPATH": path}, text=True, capture_output=True, check=False
    )
    if finished.returncode:
        last = [line for line in finished.stderr.splitlines() if line.strip()][-1:]
        raise UserError(
            f"expected {' '.join(command[1:4])} to succeed, found exit code {finished.returncode}: "
            f"{last[0] if last else 'no message'}",
            code=1,
        )


def _fingerprint(path: Path) -> dict | None:
    """Size in bytes and SHA-256 of a file, or None where it is missing or cannot be read."""
    try:
        with path.open("rb") as file:
            return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError:
        return None


def _describe(fingerprint: dict | None) -> str:
    return f"{fingerprint['bytes']} bytes, SHA-256 {fingerprint['sha256'][:12]}" if fingerprint else "no readable file"
