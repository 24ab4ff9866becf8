"""The lock holds exactly what a Linux machine can install, and a lock that is out of date is seen and explained.

The resolver is replaced by a recorded answer: the project's continuous integration resolves for real.
"""

import re
import resource

import pytest

import lock
import matrix
from errors import UserError

CPU = matrix.load("cpu")
LOCK = lock.lock_file("cpu").read_text(encoding="utf-8")


def digit(letter: str) -> str:
    return letter * 64


def wheel(name: str, letter: str) -> dict:
    return {"url": f"https://index.example/{name}", "hashes": {"sha256": digit(letter)}}


def package(
    name: str, *wheels: dict, sdist: dict | None = None, marker: str | None = None, version: str = "1.0"
) -> dict:
    entry = {"name": name, "version": version, "wheels": list(wheels)}
    return entry | ({"sdist": sdist} if sdist else {}) | ({"marker": marker} if marker else {})


def resolved(monkeypatch, *packages: dict) -> str:
    monkeypatch.setattr(lock, "_run_uv", lambda chosen, folder: {"packages": list(packages)})
    return lock.resolve(CPU)


def hashes(text: str) -> set[str]:
    """The letters of the hashes in a lock."""
    return {one[0] for one in re.findall(r"--hash=sha256:(\w+)", text)}


def test_hashes_of_files_that_linux_can_install(monkeypatch):
    text = resolved(
        monkeypatch,
        package(
            "several",
            wheel("several-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "a"),
            wheel("several-1.0-cp311-cp311-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", "b"),
            wheel("several-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", "1"),
            wheel("several-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", "2"),
            wheel("several-1.0-cp311-cp311-macosx_11_0_arm64.whl", "3"),
            wheel("several-1.0-cp311-cp311-win_amd64.whl", "4"),
            wheel("several-1.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", "5"),
            sdist=wheel("several-1.0.tar.gz", "6"),
        ),
        package("stable", wheel("stable-1.0-cp39-abi3-manylinux_2_17_x86_64.whl", "c"),
                wheel("stable-1.0-cp39-abi3-manylinux_2_17_aarch64.whl", "d"),
                wheel("stable-1.0-cp312-abi3-manylinux_2_17_aarch64.whl", "7")),
        package("pure", wheel("pure-1.0-py3-none-any.whl", "e")),
        package("source", sdist=wheel("source-1.0.tar.gz", "f")),
    )  # fmt: skip
    assert hashes(text) == set("abcdef")


def test_what_is_built_here_has_the_hash_of_its_source_alone(monkeypatch):
    vllm = package("vllm", wheel("vllm-1.0-cp38-abi3-manylinux1_x86_64.whl", "1"), sdist=wheel("vllm-1.0.tar.gz", "a"))
    assert hashes(resolved(monkeypatch, vllm)) == {"a"}


def test_a_marker_stays_only_where_the_machines_differ(monkeypatch):
    any_wheel = wheel("one-1.0-py3-none-any.whl", "a")
    linux = "python_full_version < '3.12' and sys_platform == 'linux'"
    both = package("both", any_wheel, marker=f"{linux} and platform_machine in 'x86_64 aarch64'")
    one = package("one", any_wheel, marker=f"{linux} and platform_machine == 'x86_64'")
    none = package("none", any_wheel, marker="sys_platform == 'win32'")
    text = resolved(monkeypatch, both, one, none).split("\n\n", 1)[1]
    assert [line for line in text.splitlines() if "==" in line] == [
        "both==1.0 \\",
        "one==1.0 ; platform_machine == 'x86_64' \\",
    ]


def test_a_machine_without_a_file_is_an_error(monkeypatch):
    only = package("only", wheel("only-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "a"))
    with pytest.raises(UserError, match=r"only 1\.0 has no file that Linux aarch64 can install"):
        resolved(monkeypatch, only)


def test_the_digest_follows_what_is_resolved_and_nothing_else():
    changed = CPU.model_copy(update={"title": "another title"})
    assert lock.digest(changed) == lock.digest(CPU)
    numpy = CPU.requirements["numpy"]
    for update in ({"version": "1.26.3"}, {"why": "another reason"}):
        requirements = CPU.requirements | {"numpy": numpy.model_copy(update=update)}
        other = CPU.model_copy(update={"requirements": requirements})
        assert (lock.digest(other) != lock.digest(CPU)) == ("version" in update)
    for update in ({"cutoff": "2025-11-16"}, {"exclude": {}}, {"override": {}}, {"machines": ["x86_64"]}):
        other = CPU.model_copy(update={"lock": CPU.lock.model_copy(update=update)})
        assert lock.digest(other) != lock.digest(CPU), update


def test_the_lock_of_this_checkout_is_that_of_its_matrix():
    assert f"inputs sha256:{lock.digest(CPU)}" in LOCK
    lines = {line.split(" ")[0].lower() for line in LOCK.splitlines() if "==" in line}
    for requirement in lock.requirements(CPU):
        assert re.sub(r"\[.*?\]", "", requirement).lower() in lines
    excluded = {line.split("==")[0] for line in lines} & set(CPU.lock.exclude)
    assert not excluded


def test_every_package_of_the_lock_has_a_hash_and_no_index_is_named():
    for name, (_, found) in lock._packages(LOCK).items():
        assert found, name
    assert "://" not in LOCK


def same(monkeypatch, tmp_path, written: str, wanted: str) -> int:
    path = tmp_path / "requirements-cpu.lock"
    path.write_text(written)
    monkeypatch.setattr(lock, "lock_file", lambda name: path)
    monkeypatch.setattr(lock, "resolve", lambda chosen: wanted)
    code = lock.check("cpu")
    assert path.read_text() == written
    return code


def test_check_of_a_lock_that_is_up_to_date(monkeypatch, tmp_path, capsys):
    assert same(monkeypatch, tmp_path, LOCK, LOCK) == 0
    assert "up to date" in capsys.readouterr().out


def test_check_names_what_would_change(monkeypatch, tmp_path, capsys):
    header = LOCK.split("\n\n")[0]

    def written(**packages: str) -> str:
        entries = [f"{key}=={value[0]} \\\n    --hash=sha256:{digit(value[1])}\n" for key, value in packages.items()]
        return header + "\n\n" + "".join(entries)

    old, new = written(a="1a", b="1b", c="1c"), written(a="2a", b="1d", d="1c")
    assert same(monkeypatch, tmp_path, old, new) == 1
    said = capsys.readouterr().out
    for line in ("  a==1 -> a==2", "  b==1: other hashes", "- c==1", "+ d==1", "invoke lock --matrix cpu"):
        assert line in said


def test_check_sees_that_matrix_toml_has_changed(monkeypatch, tmp_path, capsys):
    stale = LOCK.replace(lock.digest(CPU), digit("0"))
    assert same(monkeypatch, tmp_path, stale, LOCK) == 1
    assert "the requirements in matrix.toml have changed" in capsys.readouterr().out


def test_check_without_a_lock(monkeypatch, tmp_path):
    monkeypatch.setattr(lock, "lock_file", lambda name: tmp_path / f"requirements-{name}.lock")
    with pytest.raises(UserError, match="not there; make it with `invoke lock --matrix cpu`") as raised:
        lock.check("cpu")
    assert raised.value.code == 1


@pytest.mark.parametrize("name", ["performance", "commercial"])
@pytest.mark.parametrize("command", [lock.write, lock.check])
def test_the_npu_matrices_have_no_lock_of_their_own(name, command):
    with pytest.raises(UserError, match="installed by the image") as raised:
        command(name)
    assert raised.value.code == 2


def test_a_failed_resolution_says_why_and_leaves_the_lock_alone(monkeypatch, tmp_path):
    path = tmp_path / "requirements-cpu.lock"
    path.write_text("as it was")
    monkeypatch.setattr(lock, "lock_file", lambda name: path)

    class Done:
        returncode, stderr = 1, "error: Failed to fetch\n  Caused by: dns error\n"

    monkeypatch.setattr(lock, "uv_environment", lambda python: {})
    monkeypatch.setattr(lock.subprocess, "run", lambda *arguments, **options: Done)
    with pytest.raises(UserError, match="the network does not answer"):
        lock.write("cpu")
    assert path.read_text() == "as it was"


def test_a_lock_is_written_whole_or_not_at_all(monkeypatch, tmp_path):
    path = tmp_path / "requirements-cpu.lock"
    path.write_text("as it was")
    monkeypatch.setattr(lock, "lock_file", lambda name: path)
    monkeypatch.setattr(lock, "resolve", lambda chosen: "a==1\n" * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))  # as a disk that is full
    try:
        with pytest.raises(UserError, match="File too large"):
            lock.write("cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "as it was" and list(tmp_path.iterdir()) == [path]
    assert lock.write("cpu") == 0
    assert path.read_text() == "a==1\n" * 100 and list(tmp_path.iterdir()) == [path]
