"""The folder that goes on PYTHONPATH of a run's processes, and with it the emulated NPU.

`ensure()` returns `<prefix>/emulator/<key>/`, building it when it is missing or stale. It holds the compiled device
(`npu_device.so`), a distribution `torch_npu` whose `torch.backends` entry point makes `import torch` load the emulator
as the real package is loaded, and links to the repository's modules. Nothing else puts the emulator on a path.

Standard library only: this runs before torch is imported, and does not import it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from emulator.device import build

EMULATOR = Path(__file__).resolve().parent
# What stays out of the folder, and what has another name there: the stand-in for TransformerEngine must not shadow a
# real `transformer_engine`.
NOT_LINKED = {"__init__.py", "site.py", "device", "peers", "__pycache__"}
RENAMED = {"transformer_engine": "npu_transformer_engine"}
DEFAULT_TORCH_NPU = "2.7.1"

# Asked of another interpreter; importing torch would take seconds.
_QUESTION = """
import importlib.metadata as m, json, platform, sys
try: torch = m.version("torch")
except m.PackageNotFoundError: torch = None
print(json.dumps({"torch": torch, "prefix": sys.prefix, "tag": sys.implementation.cache_tag}))
"""


class SiteError(RuntimeError):
    """The folder cannot be made; the message says why and what to do."""


def ensure(python: str = sys.executable, progress: Callable[[str], None] | None = None) -> Path:
    """The site folder for the torch of `python`; built (about 40 s) when missing or stale.

    Processes that call this at the same time wait for one of them to build. `progress` gets one line before a build,
    by default on stderr. Raises SiteError, or build.BuildError when the compiler is missing or fails.
    """
    facts = _ask(python)
    device_key = _device_key(facts)
    name = f"{device_key}-{_links_key()}"
    root = _root(facts, name)
    folder = root / name
    if folder.is_dir():
        return folder
    with _lock(root / f".{device_key}.lock"):
        if not folder.is_dir():
            module = _device(python, root, device_key, progress or _to_stderr)
            _assemble(folder, module)
    return folder


def folder(python: str = sys.executable) -> Path:
    """Where the site folder for the torch of `python` is or will be. Builds nothing. Raises SiteError."""
    facts = _ask(python)
    name = f"{_device_key(facts)}-{_links_key()}"
    return _root(facts, name) / name


def links() -> dict[str, Path]:
    """Name in the site folder -> file or folder of the repository."""
    found = {}
    for path in sorted(EMULATOR.iterdir()):
        is_package = path.is_dir() and any(path.glob("*.py"))
        if path.name not in NOT_LINKED and (is_package or path.suffix == ".py"):
            found[RENAMED.get(path.name, path.name)] = path
    return found


def torch_npu_version() -> str:
    """The version that the emulated torch_npu claims (NPU_EMULATOR_TORCH_NPU)."""
    return os.environ.get("NPU_EMULATOR_TORCH_NPU") or DEFAULT_TORCH_NPU


def _ask(python: str) -> dict:
    try:
        done = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        found = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise SiteError(f"expected a Python interpreter at {python}, found: {found}\nGive the path of one.") from None
    facts = json.loads(done.stdout)
    if facts["torch"] is None:
        raise SiteError(
            f"the emulated NPU is a device of torch, and {python} has no torch.\n"
            "Install the locked requirements: pip install --require-hashes -r requirements-cpu.lock"
        )
    return facts


def _device_key(facts: dict) -> str:
    return f"torch-{facts['torch']}-{facts['tag']}-{platform.machine()}-{build.fingerprint()}"


def _links_key() -> str:
    text = json.dumps([torch_npu_version(), {name: str(path) for name, path in links().items()}])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _root(facts: dict, name: str) -> Path:
    """In the environment, so that it goes when that goes; in the user's cache where the environment is read-only.

    A folder that is there already needs no writing: images have it made.
    """
    preferred = Path(facts["prefix"]) / "emulator"
    if (preferred / name).is_dir():
        return preferred
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascend-rl" / "emulator"
    for root in (preferred, cache):
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(root, os.W_OK):
            return root
    raise SiteError(
        f"the emulated NPU needs a folder it can write to; neither {preferred} nor {cache} is one.\n"
        "Set XDG_CACHE_HOME to a writable folder."
    )


def _device(python: str, root: Path, key: str, progress: Callable[[str], None]) -> Path:
    """The compiled module; compiled in a folder of its own that gets its name when it is complete."""
    done = root / f".{key}"
    module = done / f"{build.MODULE}.so"
    if not module.exists():
        unfinished = root / f".{key}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a build that was killed; the lock is ours
        unfinished.mkdir()
        build.build(python, unfinished, progress)
        shutil.rmtree(done, ignore_errors=True)
        unfinished.rename(done)
    return module


def _assemble(folder: Path, module: Path) -> None:
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    shutil.copy2(module, unfinished / module.name)
    for name, path in links().items():
        (unfinished / name).symlink_to(path)
    if "torch_npu" in links():
        _write_distribution(unfinished, torch_npu_version())
    unfinished.rename(folder)


def _write_distribution(folder: Path, version: str) -> None:
    """What pip would have written for a package that torch loads by itself."""
    info = folder / f"torch_npu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\nSummary: emulated NPU\n"
    )
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    (info / "INSTALLER").write_text("emulator\n")
    (info / "RECORD").write_text("")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Print the folder's path; one message and exit code 2 when it cannot be made."""
    try:
        print(ensure())
    except (SiteError, build.BuildError) as error:
        print(f"emulator: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
