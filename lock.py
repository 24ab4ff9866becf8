"""Makes the matrices' locks, every package with its hashes, from matrix.toml, and tells when one is out of date.

uv resolves; what it writes is then reduced to what the matrix's Linux machines can install, one file for all of them.
A build that the package index does not have comes with its hash from matrix.toml, so its file need not be reachable.
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
from datetime import datetime, timedelta
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import matrix
import wheels
from environment import entries, explain, uv_environment
from errors import UserError, unwritable

ROOT = Path(__file__).resolve().parent
DEFAULT = "performance"  # the matrix whose lock is requirements.lock


def run(name: str | None, again: bool) -> int:
    """Writes, or with `again` checks, the lock of one matrix or of all. The highest exit code."""
    return max((check if again else write)(one) for one in ([name] if name else names()))


def names() -> list[str]:
    """The matrices that have a lock."""
    return [name for name in matrix.names() if matrix.load(name).lock]


def write(name: str) -> int:
    """Resolves a matrix and writes its lock."""
    chosen = _lockable(name)
    path = lock_file(name)
    text = resolve(chosen)
    _replace(path, text)
    print(f"{path.name}: {_count(text)} packages, {text.count('--hash')} hashes")
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
        print(f"{path.name}: up to date, {_count(wanted)} packages")
        return 0
    print(f"{path.name}: out of date; make it with `invoke lock --matrix {name}`. What would change:")
    print("\n".join(f"  {line}" for line in differences))
    return 1


def lock_file(name: str) -> Path:
    """Where the lock of a matrix lies."""
    return ROOT / ("requirements.lock" if name == DEFAULT else f"requirements-{name}.lock")


def requirements(chosen: matrix.Matrix) -> list[str]:
    """What is asked for directly, as requirement lines, sorted."""
    parts = [(key, one) for key, one in chosen.components.items() if one.install in matrix.FROM_INDEX]
    parts += list(chosen.requirements.items())
    return sorted(f"{one.package or key}=={one.version}" for key, one in parts)


def asked(chosen: matrix.Matrix) -> list[str]:
    """What components ask for that are no packages of the index, as requirement lines, sorted."""
    lines = {line for one in chosen.components.values() for line in one.requires}
    return sorted(line for line in lines if canonicalize_name(Requirement(line).name) not in _excluded(chosen))


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
    if requires := asked(chosen):
        inputs["requires"] = requires
    if elsewhere := chosen.lock.elsewhere:
        inputs["elsewhere"] = {
            machine: {name: [build.version, sorted(build.sha256)] for name, build in builds.items()}
            for machine, builds in elsewhere.items()
        }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def resolve(chosen: matrix.Matrix) -> str:
    """The text of the lock."""
    with tempfile.TemporaryDirectory(prefix="lock-") as folder:
        resolution = _run_uv(chosen, Path(folder))
    packages = sorted(resolution["packages"], key=lambda package: package["name"])
    for table in (chosen.lock.sdist, *chosen.lock.elsewhere.values()):
        if unknown := table.keys() - {package["name"] for package in packages}:
            raise UserError(
                f"[{chosen.name}.lock] names {', '.join(sorted(unknown))}, for which nothing asks; remove it"
            )
    return _header(chosen) + "\n" + "".join(entry for package in packages for entry in _entries(chosen, package))


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
        raise UserError(f"matrix.toml has no [{name}.lock]; `invoke lock` knows {', '.join(names())}")
    return chosen


def _excluded(chosen: matrix.Matrix) -> set[str]:
    return {canonicalize_name(name) for name in chosen.lock.exclude}


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
    (folder / "requirements.in").write_text("\n".join(requirements(chosen) + asked(chosen)) + "\n")
    (folder / "override.txt").write_text("\n".join(overrides(chosen)) + "\n")
    (folder / "exclude.txt").write_text("\n".join(sorted(chosen.lock.exclude)) + "\n")
    command = [sys.executable, "-m", "uv", "pip", "compile", "requirements.in", "--quiet", "--no-header"]
    command += ["--python", sys.executable, "--python-version", python, "--universal", "--generate-hashes"]
    command += ["--exclude-newer", _end(chosen.lock.cutoff), "--no-build-isolation"]
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


def _end(cutoff: str) -> str:
    """The end of that day in UTC: a date alone would mean the time zone of the machine."""
    return (datetime.fromisoformat(f"{cutoff}T00:00:00+00:00") + timedelta(days=1)).isoformat()


def _only(python: str) -> str:
    """The marker that keeps later Pythons out, for which some of these versions cannot be resolved."""
    major, minor = python.split(".")
    return f"python_full_version < '{major}.{int(minor) + 1}'"


def _header(chosen: matrix.Matrix) -> str:
    machines = " and ".join(chosen.lock.machines)
    python = chosen.component("python").version
    installer = "`./invokew`" if chosen.name == "cpu" else "The image"
    return (
        f"# Matrix {chosen.name}: Linux {machines}, CPython {python}, packages published before {chosen.lock.cutoff}.\n"
        f"# Made from matrix.toml by `invoke lock --matrix {chosen.name}`; not to be edited. {installer} installs it.\n"
        f"# inputs sha256:{digest(chosen)}\n"
    )


def _entries(chosen: matrix.Matrix, package: dict) -> Iterator[str]:
    """One package of the lock, or nothing; one entry for each machine where they have different builds."""
    name, version, python = package["name"], package["version"], chosen.component("python").version
    machines = [one for one in chosen.lock.machines if wheels.holds(package.get("marker"), one, python)]
    apart = {one: build for one in machines if (build := chosen.lock.elsewhere.get(one, {}).get(name))}
    if ordinary := [one for one in machines if one not in apart]:
        hashes = {digest for machine in ordinary for digest in _hashes(chosen, package, machine)}
        yield _entry(chosen, f"{name}=={version}", ordinary, hashes)
    for machine, build in apart.items():
        if build.version.partition("+")[0] != version:
            raise UserError(
                f"expected a build of {name} {version} in [{chosen.name}.lock.elsewhere.{machine}], "
                f"found {build.version}; give it the version of the component"
            )
        yield _entry(chosen, f"{name}=={build.version}", [machine], set(build.sha256))


def _entry(chosen: matrix.Matrix, pin: str, machines: list[str], hashes: set[str]) -> str:
    marker = "" if machines == chosen.lock.machines else f" ; platform_machine == '{machines[0]}'"
    return f"{pin}{marker}" + "".join(f" \\\n    --hash=sha256:{one}" for one in sorted(hashes)) + "\n"


def _hashes(chosen: matrix.Matrix, package: dict, machine: str) -> list[str]:
    """The hashes of the files that a machine can install: wheels, else the source archive where it is allowed."""
    name, python = package["name"], chosen.component("python").version
    fitting = [one for one in package.get("wheels", []) if wheels.fits(_file_name(one), machine, python)]
    if name in _from_source(chosen) or (not fitting and name in chosen.lock.sdist):
        fitting = [package["sdist"]] if "sdist" in package else []
    if not fitting:
        raise UserError(
            f"{name} {package['version']} has no file that Linux {machine} can install; choose another version, or "
            f"give the reason for building it from source in [{chosen.name}.lock.sdist]"
        )
    return [one["hashes"]["sha256"] for one in fitting]


def _file_name(file: dict) -> str:
    return file.get("name") or file["url"].rsplit("/", 1)[-1].replace("%2B", "+")


def _packages(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """name, and machine where there is one -> (its version, its hashes)."""
    packages = {}
    for one in entries(text):
        name = canonicalize_name(one.name) + (f" ({one.machine})" if one.machine else "")
        packages[name] = (f"=={one.version}", frozenset(re.findall(r"sha256:(\w+)", one.text)))
    return packages


def _count(text: str) -> int:
    """Packages of a lock; one with several builds counts once."""
    return len({name.partition(" ")[0] for name in _packages(text)})
