"""Where the generator reads from: a folder, a commit of a git repository, or an installed package. Nothing is imported.

Each is a tree of text files, addressed by paths as they are in the project's repository.
"""

import importlib.util
import io
import subprocess
import tarfile
from pathlib import Path

from errors import UserError


def open_tree(source: str, commit: str | None, folder: str) -> dict[str, str]:
    """The .py and .yaml files below `folder`, path to text.

    `source` is a checkout, a git directory (then `commit` says which state), or `installed`. UserError where there is
    nothing to read.
    """
    if source == "installed":
        found = _folder(_installed(folder.split("/")[0]), folder)
    elif commit and (_is_git(Path(source))):
        found = _commit(Path(source), commit, folder)
    else:
        found = _folder(Path(source), folder)
    if not found:
        raise UserError(f"expected files below {folder} in {source}, found none; give a checkout or its git directory")
    return found


def _is_git(path: Path) -> bool:
    return (path / ".git").exists() or (path / "objects").is_dir()


def _installed(package: str) -> Path:
    """The folder that holds an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise UserError(f"expected {package} in this Python environment, found none; run ./invokew, which installs it")
    return Path(places[0]).parent


def _folder(root: Path, folder: str) -> dict[str, str]:
    files = [path for path in sorted((root / folder).rglob("*")) if path.suffix in (".py", ".yaml") and path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _commit(repository: Path, commit: str, folder: str) -> dict[str, str]:
    arguments = ["git", "-C", str(repository), "archive", commit, folder]
    done = subprocess.run(arguments, capture_output=True, timeout=120)
    if done.returncode:
        raise UserError(f"expected {folder} at {commit} in {repository}, found: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith((".py", ".yaml"))]
        return {member.name: archive.extractfile(member).read().decode() for member in members}
