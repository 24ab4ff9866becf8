"""Judges what was built before it becomes an image: python -m image.steps.gate MATRIX SOURCES

versions    what is installed is what the lock and the matrix say, and nothing else
requirements  `pip check` without the lines that are meant (contents.toml, and what matrix.toml excludes)
commits     each component comes from the matrix's commit
imports     everything imports that can be imported without a device, the rest on the emulated NPU
abi         torch's C++ ABI is that of nnal's libraries which the entry point chooses

CANN's own packages are not looked at: they lie on PYTHONPATH, which the Dockerfile empties for this.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

import matrix as matrices
from environment import entries
from image.steps.step import StepError, contents, lock_file, pins, run, say

OWN = {"pip", "setuptools", "wheel"}  # what an environment may bring by itself
CXX11_ABI = 1  # as in entrypoint.sh
NO_DEVICE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
IMPORTER = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        sys.exit(f"GATE {name}: {type(error).__name__}: {error}")
"""


def judge(matrix: str, sources: str) -> None:
    """All checks. StepError with the first fault and the number of further ones; all faults are printed."""
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in importlib.metadata.distributions()}
    faults = [
        *version_faults(matrix, installed),
        *requirement_faults(matrix, pip_check()),
        *commit_faults(matrix, Path(sources)),
        *import_faults(matrix),
        *abi_faults(),
    ]
    for fault in faults:
        say(f"gate: {fault}")
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise StepError(f"the environment of matrix {matrix}", f"{faults[0]}{more}", "see the lines above")
    say(f"gate: {len(installed)} packages as locked, requirements met, commits and imports as in matrix {matrix}")


def version_faults(matrix: str, installed: dict[str, str]) -> Iterator[str]:
    """What is installed against the lock and the components."""
    locked, pinned = locked_versions(matrix), pins(matrix)
    for name, version in sorted(locked.items()):
        if installed.get(name) != version:
            yield f"{name}: expected {version}, found {installed.get(name, 'none')}"
    built = {}
    for name, how in contents()["components"].items():
        package = canonicalize_name(how["package"])
        built[package] = pinned[name].version
        if package not in installed:
            yield f"{package}: expected it installed, found none"
        elif built[package] and Version(installed[package]).public != Version(built[package]).public:
            yield f"{package}: expected {built[package]}, found {installed[package]}"
    for name in sorted(installed.keys() - locked.keys() - built.keys() - OWN):
        yield f"{name} {installed[name]}: expected only what the lock names, found it installed"


def locked_versions(matrix: str) -> dict[str, str]:
    """What the lock says for this machine."""
    locked = entries(lock_file(matrix).read_text(), platform.machine())
    return {canonicalize_name(one.name): one.version for one in locked}


def pip_check() -> list[str]:
    """The complaints of `pip check`, a line each; what else it ends with is one, too."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    if done.returncode == 0:
        return []
    return done.stdout.splitlines() or [f"pip check: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"]


def requirement_faults(matrix: str, complaints: list[str]) -> Iterator[str]:
    """What of `pip check` nobody has a reason for; matrix.toml has them for what it leaves out and overrides."""
    rows = [row for row in contents().get("allowed", []) if matrix in row["matrices"]]
    allowed = {(canonicalize_name(row["package"]), canonicalize_name(row["requires"])) for row in rows}
    lock = matrices.load(matrix).lock
    meant = {
        "requires": {canonicalize_name(name) for name in (lock.exclude if lock else ())},
        "has requirement": {canonicalize_name(name) for name in (lock.override if lock else ())},
    }
    for line in complaints:
        if found := re.match(r"(\S+) \S+ (requires|has requirement) ([A-Za-z0-9._-]+)", line):
            package, kind, required = found[1], found[2], canonicalize_name(found[3])
            if required in meant[kind] or (canonicalize_name(package), required) in allowed:
                continue
        yield line.rstrip(".")


def commit_faults(matrix: str, sources: Path) -> Iterator[str]:
    """Commits: of the sources as they were fetched, and as the installed packages say."""
    fetched, pinned = json.loads((sources / "sources.json").read_text()), pins(matrix)
    for name, how in contents()["components"].items():
        expected = pinned[name].commit
        try:
            origin = json.loads(importlib.metadata.distribution(how["package"]).read_text("direct_url.json") or "{}")
        except importlib.metadata.PackageNotFoundError:
            continue  # versions have said so
        for what, found in (("fetched", fetched.get(name)), ("installed", origin.get("vcs_info"))):
            commit = (found or {}).get("commit", (found or {}).get("commit_id"))
            if commit != expected:
                yield f"{name}: expected commit {expected} {what}, found {commit or 'none'}"


def import_faults(matrix: str) -> Iterator[str]:
    """Modules that do not import, each group in a process of its own; and those that must not."""
    groups = contents()["imports"]
    yield from _import(groups["plain"]["modules"], NO_DEVICE)
    only = {True: [], False: []}
    for row in groups["only"]:
        only[matrix in row["matrices"]].append(row)
    site = subprocess.run([sys.executable, "-m", "emulator.site"], capture_output=True, text=True)
    if site.returncode:
        yield site.stderr.strip().replace("\n", " ")
        return
    emulated = {"PYTHONPATH": site.stdout.strip()}
    yield from _import([*groups["emulated"]["modules"], *(row["module"] for row in only[True])], emulated)
    for row in only[False]:
        if _is_there(row["module"]):
            yield f"{row['module']}: expected that matrix {matrix} cannot import it ({row['why']}), found that it can"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def abi_faults() -> Iterator[str]:
    """The entry point names nnal's libraries by torch's C++ ABI, as to ask torch costs seconds at each start."""
    done = _python(NO_DEVICE, "import torch; print(int(torch.compiled_with_cxx11_abi()))")
    if done.stdout.strip() != str(CXX11_ABI):
        found = done.stdout.strip() or (done.stderr.strip().splitlines() or ["no output"])[-1]
        yield f"torch: expected C++ ABI {CXX11_ABI}, which entrypoint.sh gives nnal's set_env.sh, found {found}"


def _import(modules: list[str], added: dict[str, str]) -> Iterator[str]:
    done = _python(added, IMPORTER, *modules)
    if done.returncode:
        print(done.stderr[-8000:], file=sys.stderr)
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield f"expected to import {', '.join(modules)}: {last.removeprefix('GATE ')}"


def _python(added: dict[str, str], code: str, *arguments: str) -> subprocess.CompletedProcess:
    """Code in a process of its own, away from the project's folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **added}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")


if __name__ == "__main__":
    sys.exit(run("gate", judge))
