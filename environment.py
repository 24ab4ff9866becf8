"""Makes .venv from the lock: what `invokew` runs where the environment is missing or stale.

Standard library only, since nothing is installed yet. The environment counts as made once its stamp is written, which
is the last thing that happens: one that failed leaves nothing, one that was killed is done again. Two at once wait for
each other.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DISK_GB = 4.0  # free space that a set-up needs: the environment, uv's cache and what is unpacked on the way
MARK = "invokew.made"  # in an environment that may be removed, since it was made here
BUILD_ENVIRONMENT = {"VLLM_TARGET_DEVICE": "empty"}  # vLLM without kernels of its own
TOOLS = ("uv", "setuptools", "wheel")  # the installer, and what the source archives among the packages are built with
GLIBC = (2, 28)  # of torch's wheels (manylinux_2_28)

# How uv says that no index has the build of torch: the CPU's for x86_64 is on PyTorch's own.
NO_TORCH = r"no version of torch|was not found in the package registry"


class SetupError(Exception):
    """The environment cannot be made; the message says what was expected, what was found and what to do."""


@dataclass(frozen=True)
class Plan:
    """What the environment is made of, as matrix.toml and the lock have it."""

    lock: str
    torch: str  # version, with its local part
    torch_hashes: tuple[str, ...]
    from_source: tuple[str, ...]  # packages that are built here, after all others

    def stamp(self, venv: Path) -> str:
        """Changes when anything that would be installed changes, the Python, or the place (scripts name it)."""
        return hashlib.sha256(f"{self} {sys.version} {venv}".encode()).hexdigest()


def read_plan(root: Path, machine: str) -> Plan:
    """What belongs on this kind of machine. SetupError for a machine that the matrix does not name."""
    table = tomllib.loads((root / "matrix.toml").read_text(encoding="utf-8"))["cpu"]
    if machine not in table["lock"]["machines"]:
        raise SetupError(f"expected Linux on {' or '.join(table['lock']['machines'])}, found {machine}")
    return Plan(
        lock=(root / "requirements-cpu.lock").read_text(encoding="utf-8"),
        torch=table["components"]["torch"]["version"],
        torch_hashes=tuple(table["lock"]["torch"][machine]),
        from_source=tuple(name for name, one in table["components"].items() if one["install"] == "sdist"),
    )


@dataclass(frozen=True)
class Entry:
    """A package of a lock. `machine`: the only one that it is for, if any; `text`: its lines, the hashes among them."""

    name: str
    version: str
    machine: str | None
    text: str


def entries(lock: str, machine: str | None = None) -> list[Entry]:
    """What a lock holds, in its order; for a machine, where one is named, less what is marked for another."""
    marked = r"(?: *; *platform_machine *== *['\"](\w+)['\"])?"
    found = re.finditer(rf"^([\w.-]+)==([^\s;\\]+){marked}.*(?:\n {{4}}.*)*", lock, re.MULTILINE)
    read = [Entry(*one.groups(), f"{one[0]}\n") for one in found]
    return [one for one in read if machine is None or one.machine in (None, machine)]


def set_up(root: Path, machine: str) -> None:
    """Makes root/.venv, unless it is there and up to date. SetupError where that is not possible."""
    plan = read_plan(root, machine)
    venv = root / ".venv"
    with _alone(root):
        if _read(venv / "invokew.stamp") == plan.stamp(venv) and (venv / "bin" / "python").exists():
            return
        _check_machine(root)
        _remove_stale(venv)
        say(f"making {venv}")
        began = time.monotonic()
        try:
            _install(plan, venv)
        except BaseException:
            shutil.rmtree(venv, ignore_errors=True)  # half of it is of no use, and may be what filled the disk
            raise
        (venv / "invokew.stamp").write_text(plan.stamp(venv))
        say(f"ready after {time.monotonic() - began:.0f} s")


def _install(plan: Plan, venv: Path) -> None:
    locked = {one.name: one.text for one in entries(plan.lock)}
    step = Steps(venv, total=4)
    venv.mkdir()
    (venv / MARK).write_text("made by invokew, which removes it and makes it again when the lock changes\n")
    step.run("Python environment and uv", [sys.executable, "-m", "venv", str(venv)])
    python = str(venv / "bin" / "python")
    tools = step.file("tools", "".join(locked[name] for name in TOOLS))
    step.run("", [python, "-m", "pip", "install", "--require-hashes", "--no-deps", "-r", tools])

    step.environment = uv_environment(python)
    # --no-build-isolation: what is built here is built with the locked tools.
    install = [python, "-m", "uv", "pip", "install", "--python", python, "--no-deps", "--no-build-isolation"]
    install.append("--require-hashes")

    hashes = "".join(f" --hash=sha256:{one}" for one in plan.torch_hashes)
    torch = step.file("torch", f"torch=={plan.torch}{hashes}\n")
    try:
        step.run(f"torch {plan.torch} (190 MB)", [*install, "-r", torch])
    except SetupError as error:
        if not re.search(NO_TORCH, step.output):
            raise
        step.again(
            f"torch {plan.torch} from PyTorch's CPU index", [*install, "--torch-backend=cpu", "-r", torch], error
        )

    ready = "".join(text for name, text in locked.items() if name not in plan.from_source)
    step.run(f"{len(locked)} packages of the lock (420 MB)", [*install, "-r", step.file("lock", ready)])
    built = "".join(locked[name] for name in plan.from_source)
    for name in plan.from_source:
        install += ["--no-binary", name]
    step.run(f"building {', '.join(plan.from_source)}", [*install, "-r", step.file("source", built)])


class Steps:
    """Runs the commands of a set-up one after the other, shows which one is at work, and explains a failure."""

    def __init__(self, venv: Path, total: int):
        self.venv, self.total, self.number = venv, total, 0
        self.environment: dict[str, str] = dict(os.environ)
        self.output = self.shown = ""

    def file(self, name: str, text: str) -> str:
        """A requirements file for one of the steps."""
        path = self.venv / f"invokew.{name}.txt"
        path.write_text(text)
        return str(path)

    def run(self, title: str, command: list[str]) -> None:
        """One step; without a title it goes on with the last one. SetupError when the command fails."""
        if title:
            self.number += 1
            self.title = title
        self._execute(command)

    def again(self, title: str, command: list[str], first: SetupError) -> None:
        """The step that has just failed, tried another way. The error, if any, names both failures."""
        self.title = title
        try:
            self._execute(command)
        except SetupError as second:
            raise SetupError(f"{first}\n  then {second}") from None

    def _execute(self, command: list[str]) -> None:
        label = f"{self.number}/{self.total} {self.title}"
        lines: deque[str] = deque(maxlen=60)
        process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            self._wait(process, label)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        reader.join(timeout=10)
        self.output = "".join(lines)
        if process.returncode:
            raise SetupError(f"{self.title}: {explain(self.output)}")

    def _wait(self, process: subprocess.Popen, label: str) -> None:
        """Waits, and shows that something is going on: a counting line on a terminal, one line a step elsewhere."""
        began, terminal = time.monotonic(), sys.stderr.isatty()
        if not terminal and label != self.shown:
            say(label)
        self.shown = label
        while True:
            if terminal:
                print(f"\rinvokew: {label} … {time.monotonic() - began:.0f} s ", end="", file=sys.stderr, flush=True)
            try:
                process.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                continue
        if terminal:
            print(file=sys.stderr)


# What pip and uv say when the machine, not the project, is at fault: (pattern, what it means and what to do).
_FAULTS = (
    (
        r"no space left|os error 28|disk quota",
        "the disk is full; free {disk:.0f} GB here or in uv's cache (UV_CACHE_DIR), then run the command again",
    ),
    (
        r"invalid peer certificate|CERTIFICATE_VERIFY_FAILED|self.signed certificate",
        "the certificate of the package index is not trusted; name your certificates with SSL_CERT_FILE and PIP_CERT",
    ),
    (
        r"hash mismatch|do not match the hashes",
        "a downloaded file is not the one of the lock; a mirror may serve another file under the same name",
    ),
    (
        r"ensurepip",
        "this Python has no venv module; install it: apt-get install python{python}-venv",
    ),
    (
        r"dns error|name resolution|name or service not known|client error \(connect\)|connection refused|"
        r"network is unreachable|no route to host|failed to establish a new connection|timed out|connection reset",
        "the network does not answer; the package index must be reachable, directly, through HTTPS_PROXY or as a "
        "mirror that pip is configured with (PIP_INDEX_URL or pip.conf)",
    ),
    (
        NO_TORCH,
        "no CPU build of torch was found where pip is configured to look; make PyTorch's CPU index reachable, or put "
        "the wheel into a folder and name it with PIP_FIND_LINKS",
    ),
    (
        r"permission denied|read-only file system",
        "the folder cannot be written; use a checkout of your own on a disk that can be written",
    ),
    (
        r"(gcc|g\+\+|cc|c\+\+)['\"]?: (no such file|not found|command not found)|no cmake_cxx_compiler|"
        r"command '(gcc|g\+\+|cc|c\+\+)' failed",
        "a C++ compiler is needed; install it: apt-get install g++",
    ),
)


def explain(output: str) -> str:
    """What the output of a command that failed means, with its telling line; else its last lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for pattern, meaning in _FAULTS:
        telling = [line for line in lines if re.search(pattern, line, re.IGNORECASE)]
        if telling:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            return f"{meaning.format(disk=DISK_GB, python=version)}\n    found: {telling[-1][:300]}"
    return "the command failed, its last lines:\n" + "\n".join(f"    {line}" for line in lines[-12:])


def uv_environment(python: str) -> dict[str, str]:
    """The environment in which uv runs: it looks where pip is configured to look, unless it is configured itself."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    return {**from_pip_config(listed.stdout), **os.environ, **BUILD_ENVIRONMENT}


def from_pip_config(listed: str) -> dict[str, str]:
    """uv's settings that say what `pip config list` says: indexes, folders with wheels, certificates, proxy.

    Every package is checked against its hash, so any index may serve any of them.
    """
    words = pip_settings(listed)
    result = {"UV_NATIVE_TLS": "1", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    # HTTPS_PROXY, where it is set, wins over the last.
    names |= {"trusted-host": "UV_INSECURE_HOST", "proxy": "ALL_PROXY"}
    result |= {name: words[key] for key, name in names.items() if words.get(key)}
    if words.get("find-links"):
        result["UV_FIND_LINKS"] = words["find-links"].replace(" ", ",")
    return result


def pip_settings(listed: str) -> dict[str, str]:
    """What `pip config list` says that counts for an installation; lists are words with spaces between them."""
    settings: dict[str, str] = {}
    for scope in ("global", "install", ":env:"):  # the later wins, as with pip
        settings |= dict(re.findall(rf"^{scope}\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    return {key: " ".join(value.replace("\\n", " ").split()) for key, value in settings.items()}


def _check_machine(root: Path) -> None:
    """What can be seen before minutes are spent."""
    name, version = platform.libc_ver()
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if name != "glibc" or found < GLIBC:
        wanted = ".".join(map(str, GLIBC))
        raise SetupError(
            f"expected glibc {wanted} or newer, as torch's wheels do; found {name or 'another C library'} {version}"
        )
    free = shutil.disk_usage(root).free / 1e9
    if free < DISK_GB:
        raise SetupError(
            f"expected {DISK_GB:.0f} GB of free space in {root}, found {free:.1f} GB; free some and run again"
        )
    if not os.access(root, os.W_OK):
        raise SetupError(f"expected a folder that can be written, found {root}; use a checkout of your own")


def _remove_stale(venv: Path) -> None:
    """Removes an environment that invokew made, if nothing runs from it; leaves any other alone."""
    if not venv.exists():
        return
    if not (venv / MARK).is_file() and any(venv.iterdir()):
        raise SetupError(f"{venv} was not made by invokew; move it away and run the command again")
    users = list(_processes_of(venv))
    if users:
        raise SetupError(
            f"{venv} is out of date and in use by process {', '.join(users)}; run the command again when it has ended"
        )
    shutil.rmtree(venv)


def _processes_of(venv: Path) -> Iterator[str]:
    """Ids of the processes that were started from the environment."""
    start = f"{venv}/bin/".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if start in (entry / "cmdline").read_bytes():
                yield entry.name
        except OSError:
            continue


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Holds the set-up's lock, which the system frees however this process ends."""
    try:
        handle = open(root / ".venv.lock", "w")  # noqa: SIM115 (closed below, where the lock ends)
    except OSError as error:
        raise SetupError(f"expected a folder that can be written, found {error}; use a checkout of your own") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is at work here; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def say(message: str) -> None:
    """One line to the person who waits."""
    print(f"invokew: {message}", file=sys.stderr, flush=True)


def main(checksum: str) -> int:
    """Sets up this checkout; `checksum` is invokew's own quick test of it, recorded where it will look."""
    try:
        set_up(ROOT, platform.machine() if sys.platform == "linux" else sys.platform)
        (ROOT / ".venv" / "invokew.sum").write_text(checksum + "\n")
    except SetupError as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"the set-up stopped: {explain(str(error))}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; the next call begins the set-up again")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
