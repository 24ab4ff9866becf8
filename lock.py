"""Makes requirements-<matrix>.lock, every package with its hashes, from matrix.toml, and tells when it is out of date.

uv resolves; what it writes is then reduced to what the matrix's Linux machines can install, one file for all of them.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.markers import Marker
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

import matrix
from environment import explain, uv_environment
from errors import UserError, unwritable

ROOT = Path(__file__).resolve().parent


def write(name: str) -> int:
    """Resolves a matrix and writes its lock."""
    chosen = _lockable(name)
    path = lock_file(name)
    text = resolve(chosen)
    _replace(path, text)
    print(f"{path.name}: {text.count('==')} packages, {text.count('--hash')} hashes")
    return 0


def _replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise unwritable(error, path) from error


def check(name: str) -> int:
    """Resolves again and compares. 0 where the lock is up to date, 1 with the differences where it is not."""
    chosen = _lockable(name)
    path = lock_file(name)
    if not path.is_file():
        raise UserError(f"{path.name}: not there; make it with `invoke lock --matrix {name}`", code=1)
    written = path.read_text(encoding="utf-8")
    if digest(chosen) not in written.split("\n\n")[0]:
        print(f"{path.name}: the requirements in matrix.toml have changed since it was made")
    wanted = resolve(chosen)
    differences = list(differences_between(written, wanted))
    if not differences:
        print(f"{path.name}: up to date, {wanted.count('==')} packages")
        return 0
    print(f"{path.name}: out of date; make it with `invoke lock --matrix {name}`. What would change:")
    print("\n".join(f"  {line}" for line in differences))
    return 1


def lock_file(name: str) -> Path:
    """Where the lock of a matrix lies."""
    return ROOT / f"requirements-{name}.lock"


def requirements(chosen: matrix.Matrix) -> list[str]:
    """What is asked for directly, as requirement lines, sorted."""
    parts = [(key, one) for key, one in chosen.components.items() if one.install in matrix.FROM_INDEX]
    parts += list(chosen.requirements.items())
    return sorted(f"{one.package or key}=={one.version}" for key, one in parts)


def overrides(chosen: matrix.Matrix) -> list[str]:
    """The requirement lines that win over what other packages ask for."""
    return sorted(
        f"{one.package or key}=={one.version}" for key in chosen.lock.override for one in [chosen.component(key)]
    )


def digest(chosen: matrix.Matrix) -> str:
    """sha256 over everything in matrix.toml that decides what is resolved; reasons and comments do not count."""
    inputs = {
        "python": chosen.component("python").version,
        "requirements": requirements(chosen),
        "source": _from_source(chosen),
        "override": overrides(chosen),
        "exclude": sorted(chosen.lock.exclude),
        "cutoff": chosen.lock.cutoff,
        "machines": chosen.lock.machines,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def resolve(chosen: matrix.Matrix) -> str:
    """The text of the lock."""
    with tempfile.TemporaryDirectory(prefix="lock-") as folder:
        resolution = _run_uv(chosen, Path(folder))
    packages = sorted(resolution["packages"], key=lambda package: package["name"])
    return _header(chosen) + "\n" + "".join(entry for package in packages if (entry := _entry(chosen, package)))


def differences_between(written: str, wanted: str) -> Iterator[str]:
    """What distinguishes two locks, one line each, for a person to read."""
    old, new = _packages(written), _packages(wanted)
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield f"- {name}{old[name][0]}"
        elif name not in old:
            yield f"+ {name}{new[name][0]}"
        elif old[name][0] != new[name][0]:
            yield f"  {name}{old[name][0]} -> {name}{new[name][0]}"
        elif old[name][1] != new[name][1]:
            yield f"  {name}{old[name][0]}: other hashes"
    if written.split("\n\n")[0] != wanted.split("\n\n")[0]:
        yield "  the header"


def _lockable(name: str) -> matrix.Matrix:
    chosen = matrix.load(name)
    if chosen.lock is None:
        able = [other for other in matrix.names() if matrix.load(other).lock]
        raise UserError(
            f"matrix {name} has no lock: it is installed by the image, from a base image and commits; "
            f"`invoke lock` knows {', '.join(able)}"
        )
    return chosen


def _from_source(chosen: matrix.Matrix) -> list[str]:
    return sorted(key for key, one in chosen.components.items() if one.install == "sdist")


def _run_uv(chosen: matrix.Matrix, folder: Path) -> dict:
    """uv's resolution for all machines of the matrix, as pylock.toml has it."""
    python = chosen.component("python").version
    # Only pyproject.toml can say for which machines: everything else would stay in as markers.
    places = [
        f"{_only(python)} and sys_platform == 'linux' and platform_machine == '{m}'" for m in chosen.lock.machines
    ]
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "lock"\nversion = "0"\nrequires-python = "=={python}.*"\n'
        f"[tool.uv]\nenvironments = {json.dumps(places)}\n"
    )
    (folder / "requirements.in").write_text("\n".join(requirements(chosen)) + "\n")
    (folder / "override.txt").write_text("\n".join(overrides(chosen)) + "\n")
    (folder / "exclude.txt").write_text("\n".join(sorted(chosen.lock.exclude)) + "\n")
    command = [sys.executable, "-m", "uv", "pip", "compile", "requirements.in", "--quiet", "--no-header"]
    command += ["--python", sys.executable, "--python-version", python, "--universal", "--generate-hashes"]
    command += ["--exclude-newer", chosen.lock.cutoff, "--no-build-isolation"]
    command += ["--override", "override.txt", "--excludes", "exclude.txt"]
    for package in _from_source(chosen):
        command += ["--no-binary", package]
    command += ["--format", "pylock.toml", "--output-file", "pylock.toml"]
    environment = uv_environment(sys.executable)
    for further in {"UV_INDEX", "UV_FIND_LINKS"} - os.environ.keys():  # they need not know when a file was published
        environment.pop(further, None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise UserError(f"matrix {chosen.name} cannot be resolved: {explain(done.stderr)}")
    return tomllib.loads((folder / "pylock.toml").read_text())


def _only(python: str) -> str:
    """The marker that keeps later Pythons out, for which some of these versions cannot be resolved."""
    major, minor = python.split(".")
    return f"python_full_version < '{major}.{int(minor) + 1}'"


def _header(chosen: matrix.Matrix) -> str:
    machines = " and ".join(chosen.lock.machines)
    python = chosen.component("python").version
    return (
        f"# Matrix {chosen.name}: Linux {machines}, CPython {python}, packages published before {chosen.lock.cutoff}.\n"
        f"# Made from matrix.toml by `invoke lock --matrix {chosen.name}`; not to be edited. `./invokew` installs it.\n"
        f"# inputs sha256:{digest(chosen)}\n"
    )


def _entry(chosen: matrix.Matrix, package: dict) -> str:
    """One package of the lock with the hashes of the files that the matrix's machines can install, or nothing."""
    name, version = package["name"], package["version"]
    machines = [one for one in chosen.lock.machines if _wanted_on(package.get("marker"), one, chosen)]
    hashes = set()
    for machine in machines:
        fitting = [wheel for wheel in package.get("wheels", []) if _fits(_file_name(wheel), machine, chosen)]
        if name in _from_source(chosen) or not fitting:
            fitting = [package["sdist"]] if "sdist" in package else []
        if not fitting:
            raise UserError(f"{name} {version} has no file that Linux {machine} can install; choose another version")
        hashes.update(one["hashes"]["sha256"] for one in fitting)
    if not machines:
        return ""
    marker = "" if machines == chosen.lock.machines else f" ; platform_machine == '{machines[0]}'"
    return f"{name}=={version}{marker}" + "".join(f" \\\n    --hash=sha256:{one}" for one in sorted(hashes)) + "\n"


def _wanted_on(marker: str | None, machine: str, chosen: matrix.Matrix) -> bool:
    if not marker:
        return True
    python = chosen.component("python").version
    place = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": machine}
    place |= {"python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}
    return Marker(marker).evaluate({**place, "platform_python_implementation": "CPython"})


def _file_name(file: dict) -> str:
    return file.get("name") or file["url"].rsplit("/", 1)[-1].replace("%2B", "+")


def _fits(file_name: str, machine: str, chosen: matrix.Matrix) -> bool:
    """Whether a glibc Linux of that machine can install the wheel with the matrix's Python."""
    try:
        *_, tags = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return False
    minor = int(chosen.component("python").version.split(".")[1])
    return any(_python_fits(tag, minor) and _platform_fits(tag.platform, machine) for tag in tags)


def _python_fits(tag, minor: int) -> bool:
    match = re.fullmatch(r"(cp|py)(\d)(\d*)", tag.interpreter)
    if not match or match[2] != "3":
        return False
    needs = int(match[3] or 0)
    if tag.abi == f"cp3{minor}":
        return True
    if tag.abi == "abi3" or (tag.abi == "none" and match[1] == "py"):
        return needs <= minor
    return tag.abi == "none" and needs == minor


def _platform_fits(platform: str, machine: str) -> bool:
    return platform == "any" or re.fullmatch(rf"(manylinux[0-9_]*|linux)_{machine}", platform) is not None


def _packages(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """name -> (the rest of its line, its hashes)."""
    packages = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text):
        if match := re.match(r"([A-Za-z0-9._-]+)(==[^\\\n]*)", entry):
            packages[canonicalize_name(match[1])] = (match[2].strip(), frozenset(re.findall(r"sha256:(\w+)", entry)))
    return packages
