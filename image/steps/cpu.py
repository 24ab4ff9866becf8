"""Makes the cpu matrix's environment as ./invokew does, and takes out what only its making needs: python3.11 -m …"""

import shutil
import sys
from pathlib import Path

import environment
from image.steps.step import PROJECT, StepError, run, say

# Below the environment's packages, none of it read when something runs: (pattern, why it is there).
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


def make() -> None:
    """The environment in the project's folder."""
    import platform

    try:
        environment.set_up(PROJECT, platform.machine())
    except environment.SetupError as error:
        what, _, telling = str(error).partition("\n    found: ")
        raise StepError("the cpu matrix's environment", telling or what, what if telling else "see there") from None
    packages = next((PROJECT / ".venv" / "lib").glob("python*/site-packages"))
    freed = sum(_remove(path) for pattern, _ in UNUSED for path in packages.glob(pattern))
    say(f"removed {freed / 1e6:.0f} MB that nothing reads at run time")


def _remove(path: Path) -> int:
    """Removes a file or folder; its bytes."""
    if not path.is_dir():
        size = path.stat().st_size
        path.unlink()
        return size
    size = sum(one.lstat().st_size for one in path.rglob("*"))
    shutil.rmtree(path)
    return size


if __name__ == "__main__":
    sys.exit(run("cpu", make))
