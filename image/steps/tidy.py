"""Makes a finished folder small, the same for every build, and readable for everybody: … image.steps.tidy FOLDER…

Modules are compiled here, since who runs the image cannot write beside them, and a dozen processes import thousands.
The compiled files name their sources' hashes, not times: the same in every build, and a module that is mounted over
another counts.
"""

import compileall
import os
import py_compile
import shutil
import sys
import warnings
from pathlib import Path

from image.steps.step import StepError, run, say

LEFT = ("uv_cache.json", "build.log")  # what uv and the emulator's build leave behind: times, orders
ENVIRONMENTS = ("venv", "project/.venv")
# Below an environment's packages, none of it read when something runs: (pattern, what it is).
UNUSED = (
    ("torch/test", "torch's own test programs"),
    ("torch/bin/protoc*", "a compiler; torch_shm_manager beside it is used"),
    ("torch/bin/*[tT]est*", "test programs"),
    ("torch/lib/*.a", "static libraries"),
    ("ray/jars", "Ray for Java"),
    ("ray/cpp", "Ray for C++"),
    ("pyarrow/tests", "tests"),
    ("pandas/tests", "tests"),
    ("numpy/*/tests", "tests"),
    ("scipy/*/tests", "tests"),
    ("sympy/*/tests", "tests"),
    ("networkx/*/tests", "tests"),
)


def tidy(*folders: str) -> None:
    """All of it."""
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise StepError("a folder to tidy", f"no {folder}", "see the steps before")
        _take_out(folder)
        _clean(folder)
        _compile(folder)
        _permit(folder)
        say(f"{folder}: {_size(folder) / 1e9:.2f} GB")


def _take_out(folder: Path) -> None:
    """What is unused, of the environments in it."""
    freed = 0
    for packages in [one for name in ENVIRONMENTS for one in (folder / name).glob("lib/python*/site-packages")]:
        for path in [path for pattern, _ in UNUSED for path in packages.glob(pattern)]:
            if path.is_dir():
                freed += _size(path)
                shutil.rmtree(path)
            else:
                freed += path.stat().st_size
                path.unlink()
    say(f"{folder}: without {freed / 1e6:.0f} MB that nothing reads at run time")


def _clean(folder: Path) -> None:
    for at, folders, files in os.walk(folder):
        for name in [one for one in folders if one == "__pycache__"]:
            shutil.rmtree(Path(at) / name)
            folders.remove(name)
        for name in files:
            if name in LEFT or name.endswith(".pyc"):
                (Path(at) / name).unlink()


def _compile(folder: Path) -> None:
    warnings.simplefilter("ignore")  # other people's
    compileall.compile_dir(
        folder,
        maxlevels=40,
        quiet=2,  # some packages hold files for other Pythons
        workers=os.cpu_count() or 1,
        invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
    )


def _permit(folder: Path) -> None:
    """u=rwX,go=rX: a checkout's modes follow the umask of who made it."""
    for at, folders, files in os.walk(folder):
        for name in [".", *folders, *files]:
            path = Path(at) / name
            if not path.is_symlink():
                executable = path.is_dir() or path.stat().st_mode & 0o100
                path.chmod(0o755 if executable else 0o644)


def _size(folder: Path) -> int:
    return sum(
        (Path(at) / name).lstat().st_size for at, folders, files in os.walk(folder) for name in (*folders, *files)
    )


if __name__ == "__main__":
    sys.exit(run("tidy", tidy))
