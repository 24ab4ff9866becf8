"""The set-up: what it installs, how it survives an interruption, and what it says when the machine is at fault.

pip and uv are replaced; the project's continuous integration makes the real environment.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import environment
from environment import SetupError

ROOT = Path(environment.__file__).resolve().parent
DIGIT = "0123456789abcdef" * 4

LOCK = "".join(
    f"{name}==1 \\\n    --hash=sha256:{DIGIT}\n"
    for name in ("numpy", "setuptools", "uv", "vllm", "wheel")
)  # fmt: skip


@pytest.fixture
def checkout(tmp_path) -> Path:
    (tmp_path / "matrix.toml").write_text((ROOT / "matrix.toml").read_text())
    (tmp_path / "requirements-cpu.lock").write_text(f"# header\n\n{LOCK}")
    return tmp_path


class Commands:
    """Stands for pip and uv: records the commands, fails those with a word that `failing` names."""

    def __init__(self):
        self.given: list[list[str]] = []
        self.failing: dict[str, str] = {}  # part of a word -> what the command prints

    def execute(self, steps: environment.Steps, command: list[str]) -> None:
        self.given.append(command)
        for part, output in self.failing.items():
            if any(part in word for word in command):
                steps.output = output
                raise SetupError(environment.explain(output))
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            (Path(command[3]) / "bin" / "python").touch()


@pytest.fixture
def commands(monkeypatch) -> Commands:
    recorded = Commands()
    monkeypatch.setattr(environment.Steps, "_execute", lambda steps, command: recorded.execute(steps, command))
    monkeypatch.setattr(environment, "uv_environment", lambda python: {})
    return recorded


def test_the_order_of_the_set_up(checkout, commands):
    environment.set_up(checkout, "x86_64")
    venv, tools, torch, locked, built = commands.given
    assert venv == [sys.executable, "-m", "venv", str(checkout / ".venv")]
    assert "--require-hashes" in tools and "--require-hashes" in torch and "--require-hashes" in built
    assert "--torch-backend=cpu" not in torch
    files = [Path(command[command.index("-r") + 1]).read_text() for command in (tools, torch, locked, built)]
    assert [text.count("==") for text in files] == [3, 1, 4, 1]
    plan = environment.read_plan(ROOT, "x86_64")
    assert plan.torch.endswith("+cpu")
    assert files[1] == f"torch=={plan.torch} --hash=sha256:{plan.torch_hashes[0]}\n"
    assert "vllm" not in files[2] and files[3].startswith("vllm==1 \\\n    --hash")
    assert built[-1] == built[built.index("-r") + 1] and "--no-binary" in built and "--no-binary" not in locked


def test_torch_comes_from_its_own_index_when_pip_s_sources_have_none(checkout, commands):
    commands.failing["invokew.torch.txt"] = "Because there is no version of torch==1"
    with pytest.raises(SetupError):
        environment.set_up(checkout, "x86_64")
    assert ["--torch-backend=cpu" in command for command in commands.given] == [False, False, False, True]


def test_torch_is_not_sought_elsewhere_when_its_hash_is_wrong(checkout, commands):
    commands.failing["invokew.torch.txt"] = "error: Hash mismatch for torch"
    with pytest.raises(SetupError, match="a downloaded file is not the one of the lock"):
        environment.set_up(checkout, "x86_64")
    assert not any("--torch-backend=cpu" in command for command in commands.given)


def test_an_environment_that_is_up_to_date_is_left_alone(checkout, commands):
    environment.set_up(checkout, "x86_64")
    done = len(commands.given)
    (checkout / ".venv" / "mine").touch()
    environment.set_up(checkout, "x86_64")
    assert len(commands.given) == done
    assert (checkout / ".venv" / "mine").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(checkout, commands):
    environment.set_up(checkout, "x86_64")
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    environment.set_up(checkout, "x86_64")
    assert python.exists()


@pytest.mark.parametrize("edit", ["lock", "torch"])
def test_a_stale_environment_is_made_anew(checkout, commands, edit):
    environment.set_up(checkout, "x86_64")
    (checkout / ".venv" / "old").touch()
    file, old, new = {
        "lock": ("requirements-cpu.lock", "numpy==1 ", "numpy==2 "),
        "torch": ("matrix.toml", environment.read_plan(ROOT, "x86_64").torch_hashes[0], DIGIT),
    }[edit]
    (checkout / file).write_text((checkout / file).read_text().replace(old, new))
    environment.set_up(checkout, "x86_64")
    assert not (checkout / ".venv" / "old").exists()


def test_a_set_up_that_failed_leaves_nothing_and_is_done_again(checkout, commands):
    commands.failing["invokew.lock.txt"] = "dns error"
    with pytest.raises(SetupError):
        environment.set_up(checkout, "x86_64")
    assert not (checkout / ".venv").exists()
    commands.failing.clear()
    environment.set_up(checkout, "x86_64")
    assert (checkout / ".venv" / "invokew.stamp").exists()


def test_an_environment_of_somebody_else_is_not_touched(checkout, commands):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "pyvenv.cfg").touch()
    with pytest.raises(SetupError, match="was not made by invokew; move it away"):
        environment.set_up(checkout, "x86_64")
    assert (checkout / ".venv" / "pyvenv.cfg").exists()
    assert not commands.given


def test_a_stale_environment_in_use_is_not_pulled_away(checkout, commands):
    environment.set_up(checkout, "x86_64")
    (checkout / "requirements-cpu.lock").write_text(LOCK)
    sleeper = checkout / ".venv" / "bin" / "sleeper"
    sleeper.symlink_to("/bin/sleep")
    process = subprocess.Popen([sleeper, "60"])
    try:
        while str(sleeper).encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        (checkout / "requirements-cpu.lock").write_text(LOCK.replace("numpy==1", "numpy==2"))
        with pytest.raises(SetupError, match=f"in use by process {process.pid}"):
            environment.set_up(checkout, "x86_64")
        assert sleeper.exists()
    finally:
        process.kill()
        process.wait()


def test_a_machine_that_no_matrix_names(checkout):
    with pytest.raises(SetupError, match="expected Linux on x86_64 or aarch64, found riscv64"):
        environment.set_up(checkout, "riscv64")


def test_too_little_space(checkout, commands, monkeypatch):
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    with pytest.raises(SetupError, match=r"expected 4 GB of free space in .*, found 1\.0 GB"):
        environment.set_up(checkout, "x86_64")
    assert not (checkout / ".venv").exists()


def test_another_c_library(checkout, commands, monkeypatch):
    monkeypatch.setattr(environment.platform, "libc_ver", lambda: ("", ""))
    with pytest.raises(SetupError, match=r"expected glibc 2\.28 or newer"):
        environment.set_up(checkout, "x86_64")


# A set-up whose work is to sleep, in a process of its own.
SLOW = """
import signal, sys, time, pathlib
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits it as ignored
sys.path.insert(0, {source!r})
import environment

def install(plan, venv):
    venv.mkdir()
    (venv / environment.MARK).touch()
    (venv / "bin").mkdir()
    (venv / "bin" / "python").touch()
    with open({root!r} + "/log", "a") as log:
        log.write("begin\\n"); log.flush()
        time.sleep({seconds})
        log.write("end\\n")

environment._install = install
environment.ROOT = pathlib.Path({root!r})
sys.exit(environment.main("sum"))
"""


def slow_set_up(root: Path, seconds: float) -> subprocess.Popen:
    code = SLOW.format(source=str(ROOT), root=str(root), seconds=seconds)
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def wait_for_log(root: Path) -> None:
    deadline = time.monotonic() + 20
    while not (root / "log").exists() or not (root / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_at_once_do_the_work_once(checkout):
    first = slow_set_up(checkout, 1)
    wait_for_log(checkout)
    second = slow_set_up(checkout, 1)
    said = [process.communicate(timeout=30)[1] for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert (checkout / "log").read_text().splitlines() == ["begin", "end"]
    assert "another set-up is at work here; waiting" in said[1]
    assert (checkout / ".venv" / "invokew.sum").read_text() == "sum\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_set_up_is_done_again(checkout, number):
    first = slow_set_up(checkout, 60)
    wait_for_log(checkout)
    first.send_signal(number)
    _, said = first.communicate(timeout=20)
    if number == signal.SIGINT:
        assert first.returncode == 130
        assert "interrupted" in said and "Traceback" not in said
    assert (checkout / ".venv").exists() == (number == signal.SIGKILL)
    (checkout / "log").unlink()
    second = slow_set_up(checkout, 0)
    assert second.wait(timeout=30) == 0
    assert (checkout / "log").read_text().splitlines() == ["begin", "end"]


def test_a_command_s_output_explains_its_failure(tmp_path):
    steps = environment.Steps(tmp_path, total=1)
    failing = [sys.executable, "-c", "print('No space left on device (os error 28)'); raise SystemExit(1)"]
    with pytest.raises(SetupError, match="packages: the disk is full; free 4 GB"):
        steps.run("packages", failing)
    steps.run("packages", [sys.executable, "-c", ""])


@pytest.mark.parametrize(
    ("output", "meaning"),
    [
        ("error: Failed to fetch\n  Caused by: dns error\n", "the network does not answer"),
        ("ERROR: ... Temporary failure in name resolution", "the network does not answer"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full"),
        ("Caused by: client error (Connect)\n  Caused by: invalid peer certificate: UnknownIssuer", "certificate"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "not the one of the lock"),
        ("no version of torch==1 and you require", "no CPU build of torch"),
        ("The virtual environment was not created successfully because ensurepip is not available.", "python3.11-venv"),
        ("error: command 'gcc' failed: No such file or directory", "apt-get install g++"),
        ("OSError: [Errno 30] Read-only file system: '/x'", "the folder cannot be written"),
        ("something new\nthat nobody knows", "its last lines:\n    something new\n    that nobody knows"),
    ],
)
def test_explanations(output, meaning):
    assert meaning in environment.explain(output)


def test_uv_looks_where_pip_is_configured_to_look():
    listed = (
        ":env:.find-links='/wheels'\n"
        "global.cert='/etc/ca.pem'\n"
        "global.extra-index-url='https://a.example/simple https://b.example/simple'\n"
        "global.find-links='/other'\n"
        "global.index-url='https://mirror.example/simple'\n"
        "global.proxy='proxy.example:3128'\n"
        "global.trusted-host='a.example\\nb.example'\n"
        "install.user='no'\n"
    )
    assert environment.from_pip_config(listed) == {
        "UV_NATIVE_TLS": "1",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/wheels",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_INSECURE_HOST": "a.example b.example",
        "ALL_PROXY": "proxy.example:3128",
    }


def test_uv_s_own_settings_win(monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/pip")
    assert environment.uv_environment(sys.executable)["UV_FIND_LINKS"] == "/pip"
    monkeypatch.setenv("UV_FIND_LINKS", "/uv")
    assert environment.uv_environment(sys.executable)["UV_FIND_LINKS"] == "/uv"


def test_the_entries_of_the_real_lock():
    text = (ROOT / "requirements-cpu.lock").read_text()
    entries = {one.name: one.text for one in environment.entries(text)}
    assert "".join(entries.values()) == text.split("\n\n", 1)[1]
    plan = environment.read_plan(ROOT, "aarch64")
    assert plan.from_source == ("vllm",)
    assert {*environment.TOOLS, *plan.from_source} <= entries.keys()
