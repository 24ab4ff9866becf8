"""The software that a rehearsal runs on: a tree of checkouts at a matrix's commits, or the installed packages."""

import importlib.metadata
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import manifest
from errors import UserError
from matrix import Matrix
from patches import journal, places

# Folder of a checkout, the matrix's component, and a package in it that shows that it is one. In the order of the path.
REPOSITORIES = {
    "verl": ("verl", "verl"),
    "MindSpeed": ("mindspeed", "mindspeed"),
    "Megatron-LM": ("megatron-lm", "megatron/core"),
    "vllm-ascend": ("vllm-ascend", "vllm_ascend"),
    "vllm": ("vllm", "vllm"),
}
OPTIONAL = {"vllm"}  # else the installed release
PACKAGES = "packages"  # beside the checkouts, from `pip install --target`: what the matrix has in another version
INSTALLED = ("verl", "mindspeed", "megatron-core", "vllm", "vllm-ascend", "torch", "torch-npu", "tensordict", "ray")


@dataclass(frozen=True)
class Stack:
    """What runs: folders for the path of all processes, and each part with its commit or version."""

    paths: tuple[Path, ...]
    parts: dict[str, str]
    label: str  # what a verdict says of it

    @property
    def id(self) -> str:
        """Names it in what is kept between rehearsals."""
        return json.dumps(self.parts, sort_keys=True)


def checked_out(root: Path, matrix: Matrix, any_commit: bool = False) -> Stack:
    """The tree at `root`. One UserError with all that keeps it from being the matrix's, unless `any_commit`."""
    if not root.is_dir():
        raise UserError(f"--root {root}: expected a folder with {', '.join(REPOSITORIES)}, found none")
    found = {name: root / name for name in REPOSITORIES if (root / name / REPOSITORIES[name][1]).is_dir()}
    absent = [name for name in REPOSITORIES if name not in found and name not in OPTIONAL]
    if absent:
        raise UserError(
            "\n".join(
                f"--root {root}: expected a checkout {name} (with {REPOSITORIES[name][1]}/ in it), found none; "
                f"git clone {matrix.component(REPOSITORIES[name][0]).repository} {root / name}"
                for name in absent
            )
        )
    commits = {name: _commit(folder) for name, folder in found.items()}
    known = journal.load(root.absolute())
    components = {name: REPOSITORIES[name][0] for name in found}
    faults = [fault for name in found for fault in _faults(found[name], commits[name], matrix, components[name], known)]
    if faults and not any_commit:
        raise UserError("\n".join([*faults, "or allow it with --any-commit, which the verdict then says"]), code=1)
    label = (
        f"NOT the commits of matrix {matrix.name} (--any-commit)" if faults else f"matrix {matrix.name}, checked out"
    )
    label += _patched(known)
    packages = root / PACKAGES
    folders = [*([packages] if packages.is_dir() else []), *found.values()]
    others = _versions(("vllm", "torch", "transformers")) | _packages(packages)
    parts = others | {name: commit or "unknown" for name, commit in commits.items()}
    return Stack(tuple(folder.absolute() for folder in folders), parts, label)


def installed() -> Stack:
    """The packages of this environment."""
    known = journal.load(places.place(None).home)
    own = manifest.matrix()
    label = f"the image's own packages, matrix {own}" if own else "the installed packages"
    return Stack((), _versions(INSTALLED), label + _patched(known))


def _patched(known: journal.Journal) -> str:
    names = known.patches
    return f", with {len(names)} patch{'es' * (len(names) > 1)} ({', '.join(names)})" if names else ""


def _packages(folder: Path) -> dict[str, str]:
    """What lies in a folder of packages, with versions."""
    found = importlib.metadata.distributions(path=[str(folder)]) if folder.is_dir() else ()
    return {package.metadata["Name"]: package.version for package in found}


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    return dict(_version(name) for name in names if _version(name)[1])


def _version(name: str) -> tuple[str, str]:
    """Its version, with the commit where it was installed from one."""
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return name, ""
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id", "")
    return name, f"{package.version} {commit[:12]}".strip()


def _faults(folder: Path, commit: str | None, matrix: Matrix, component: str, known: journal.Journal) -> Iterator[str]:
    wanted = matrix.component(component).commit
    if commit != wanted:
        yield (
            f"{folder}: expected commit {wanted} (matrix {matrix.name}), found {commit or 'no git checkout'}; "
            f"git -C {folder} checkout {wanted}"
        )
    elif edits := [path for path in _edited(folder) if not known.is_intact(folder.absolute() / path)]:
        yield (
            f"{folder}: expected the commit as it is, or with this project's patches, found {len(edits)} edited "
            f"file(s), {edits[0]} first; git -C {folder} stash"
        )


def _edited(folder: Path) -> list[str]:
    """Files of a checkout that differ from its commit."""
    return _git(folder, "diff", "--name-only", "HEAD").splitlines()


def _commit(folder: Path) -> str | None:
    """The commit that is checked out; None where the folder is not the top of a checkout."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != folder.resolve():
        return None
    return _git(folder, "rev-parse", "HEAD") or None


def _git(folder: Path, *arguments: str) -> str:
    # safe.directory: a tree may belong to another user, as in a container
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
