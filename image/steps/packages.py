"""Makes the environment and installs the lock into it: python3 -m image.steps.packages MATRIX VENV

Every file is checked against the lock's hashes, so that any index or mirror may serve it.
"""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from environment import NO_TORCH, TOOLS, entries, explain, uv_environment
from image.steps.step import StepError, lock_file, need_space, pins, run, say

SPACE_GB = 10.0  # the environment, the wheels it comes from, and what is unpacked on the way


def install(matrix: str, folder: str) -> None:
    """The lock's packages for this machine, in a new environment."""
    _check_python(pins(matrix)["python"].version)
    venv = Path(folder)
    need_space(venv, SPACE_GB)
    locked = entries(_read(lock_file(matrix)), platform.machine())
    _call("a Python environment", [sys.executable, "-m", "venv", folder])
    python = str(venv / "bin" / "python")
    tools = _file(venv, "".join(one.text for one in locked if one.name in TOOLS))
    pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile"]
    _call("the lock's uv", [*pip, "--require-hashes", "--no-deps", "-r", tools])
    everything = _file(venv, "".join(one.text for one in locked))
    # What has no wheel is built with the lock's own tools, not with what an index has today.
    uv = [python, "-m", "uv", "pip", "install", "--python", python, "--quiet", "--link-mode=copy"]
    uv += ["--require-hashes", "--no-deps", "--no-build-isolation", "-r", everything]
    environment = uv_environment(python)
    what = f"the {len(locked)} packages of {lock_file(matrix).name}"
    try:
        _call(what, uv, environment)
    except _Failed as error:
        if not re.search(NO_TORCH, error.output):
            raise
        _call(what, [*uv, "--torch-backend=cpu"], environment)
    Path(everything).unlink()
    say(f"{len(locked)} packages of {lock_file(matrix).name}")


class _Failed(StepError):
    """A command that failed, with all that it printed."""

    output = ""


def _call(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode == 0:
        return
    print(done.stdout, file=sys.stderr)
    meaning, _, telling = explain(done.stdout).partition("\n    found: ")
    if not telling:  # nothing that is known: the last line tells most
        meaning, telling = "see the lines above", meaning.splitlines()[-1]
    failed = _Failed(what, telling, meaning)
    failed.output = done.stdout
    raise failed


def _check_python(version: str) -> None:
    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found != version:
        raise StepError(
            f"Python {version} in the base image", found, "choose a base with it: --build-arg BASE_IMAGE=NAME"
        )


def _read(lock: Path) -> str:
    if not lock.is_file():
        raise StepError(lock.name, "none", "make it with ./invokew lock, or check out the whole project")
    return lock.read_text(encoding="utf-8")


def _file(venv: Path, text: str) -> str:
    """A requirements file for an installer; it does not stay."""
    path = venv / "requirements.txt"
    path.write_text(text)
    return str(path)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(run("packages", install))
