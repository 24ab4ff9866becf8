"""The locks hold exactly what Linux machines can install, and a lock that is out of date is seen and explained.

The resolver is replaced by a recorded answer: `invoke lock --check` in continuous integration resolves for real.
"""

import re
import resource
import subprocess
import sys
import venv

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lock
import matrix
from environment import uv_environment
from errors import UserError

MATRICES = {name: matrix.load(name) for name in ("performance", "commercial", "cpu")}
LOCKS = {name: lock.lock_file(name).read_text(encoding="utf-8") for name in MATRICES}
NPU = ("performance", "commercial")
CPU, LOCK = MATRICES["cpu"], LOCKS["cpu"]
MACHINES = ("aarch64", "x86_64")


def with_lock(**changes) -> matrix.Matrix:
    """The cpu matrix with another lock table."""
    table = {"sdist": {}, **changes}
    return CPU.model_copy(update={"lock": CPU.lock.model_copy(update=table)})


def versions(name: str, machine: str) -> dict[str, str]:
    """What a lock installs on a machine: package -> version."""
    found = {}
    for key, (pin, _) in lock._packages(LOCKS[name]).items():
        package, _, only = key.partition(" ")
        if only in ("", f"({machine})"):
            assert package not in found, f"{package} twice on {machine}"
            found[package] = pin.removeprefix("==")
    return found


def digit(letter: str) -> str:
    return letter * 64


def wheel(name: str, letter: str) -> dict:
    return {"url": f"https://index.example/{name}", "hashes": {"sha256": digit(letter)}}


def package(
    name: str, *wheels: dict, sdist: dict | None = None, marker: str | None = None, version: str = "1.0"
) -> dict:
    entry = {"name": name, "version": version, "wheels": list(wheels)}
    return entry | ({"sdist": sdist} if sdist else {}) | ({"marker": marker} if marker else {})


def resolved(monkeypatch, *packages: dict, chosen: matrix.Matrix | None = None) -> str:
    monkeypatch.setattr(lock, "_run_uv", lambda chosen, folder: {"packages": list(packages)})
    return lock.resolve(chosen or with_lock())


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
            wheel("several-1.0-cp311-cp311-manylinux_2_36_x86_64.whl", "8"),
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
        chosen=with_lock(sdist={"source": "no wheel anywhere"}),
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


@pytest.mark.parametrize("sdist", [None, wheel("only-1.0.tar.gz", "b")])
def test_a_machine_without_a_wheel_is_an_error(monkeypatch, sdist):
    """A source archive that nobody has looked at would be compiled while the image is built."""
    only = package("only", wheel("only-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "a"), sdist=sdist)
    with pytest.raises(UserError, match=r"only 1\.0 has no file that Linux aarch64 can install.*\[cpu\.lock\.sdist\]"):
        resolved(monkeypatch, only)


def build(version: str) -> dict:
    return {"x86_64": {"torch": matrix.Build(version=version, sha256=[digit("b")], source="a record")}}


def test_a_build_from_elsewhere_takes_the_place_of_the_index_s_on_its_machine_alone(monkeypatch):
    ours = package("torch", wheel("torch-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", "a"),
                   wheel("torch-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "c"))  # fmt: skip
    text = resolved(monkeypatch, ours, chosen=with_lock(elsewhere=build("1.0+cpu"))).split("\n\n", 1)[1]
    assert text == (
        f"torch==1.0 ; platform_machine == 'aarch64' \\\n    --hash=sha256:{digit('a')}\n"
        f"torch==1.0+cpu ; platform_machine == 'x86_64' \\\n    --hash=sha256:{digit('b')}\n"
    )
    with pytest.raises(UserError, match=r"expected a build of torch 1\.0 .*found 1\.1\+cpu"):
        resolved(monkeypatch, ours, chosen=with_lock(elsewhere=build("1.1+cpu")))


def test_entries_of_the_lock_table_without_effect_are_errors(monkeypatch):
    for table in ({"elsewhere": build("1.0+cpu")}, {"sdist": {"torch": "no wheel"}}):
        with pytest.raises(UserError, match=r"\[cpu\.lock\] names torch, for which nothing asks"):
            resolved(monkeypatch, package("other", wheel("other-1.0-py3-none-any.whl", "a")), chosen=with_lock(**table))


def test_the_digest_follows_what_is_resolved_and_nothing_else():
    changed = CPU.model_copy(update={"title": "another title"})
    assert lock.digest(changed) == lock.digest(CPU)
    numpy = CPU.requirements["numpy"]
    for update in ({"version": "1.26.3"}, {"why": "another reason"}):
        requirements = CPU.requirements | {"numpy": numpy.model_copy(update=update)}
        other = CPU.model_copy(update={"requirements": requirements})
        assert (lock.digest(other) != lock.digest(CPU)) == ("version" in update)
    update = {"cutoff": "2025-11-16"}, {"exclude": {}}, {"override": {}}, {"machines": ["x86_64"]}
    for one in (*update, {"elsewhere": build("1.0+cpu")}):
        assert lock.digest(with_lock(**one)) != lock.digest(CPU), one
    verl = CPU.components["verl"].model_copy(update={"requires": ["numpy<3"]})
    assert lock.digest(CPU.model_copy(update={"components": CPU.components | {"verl": verl}})) != lock.digest(CPU)


@pytest.mark.parametrize("name", MATRICES)
def test_the_locks_of_this_checkout_are_those_of_their_matrices(name):
    chosen = MATRICES[name]
    assert f"inputs sha256:{lock.digest(chosen)}" in LOCKS[name].split("\n\n")[0]
    for machine in MACHINES:
        found = versions(name, machine)
        for wanted in map(Requirement, lock.requirements(chosen)):
            locked = found[canonicalize_name(wanted.name)]
            assert wanted.specifier.contains(locked, prereleases=True), (wanted, locked)
        assert not found.keys() & {canonicalize_name(one) for one in chosen.lock.exclude}
        assert chosen.lock.override.keys() <= found.keys()
        assert chosen.lock.sdist.keys() <= found.keys()


@pytest.mark.parametrize("name", MATRICES)
def test_every_package_of_a_lock_has_a_hash_and_no_index_is_named(name):
    for package, (_, found) in lock._packages(LOCKS[name]).items():
        assert found, package
    assert "://" not in LOCKS[name]


@pytest.mark.parametrize("name", NPU)
def test_machines_differ_in_the_builds_of_torch_alone(name):
    arm, intel = (versions(name, machine) for machine in MACHINES)
    differing = {package: version for package, version in intel.items() if arm.get(package) != version}
    builds = MATRICES[name].lock.elsewhere["x86_64"]
    assert differing == {package: one.version for package, one in builds.items()} and arm.keys() == intel.keys()
    for package, one in builds.items():
        assert lock._packages(LOCKS[name])[f"{package} (x86_64)"][1] == set(one.sha256)


@pytest.mark.parametrize("name", NPU)
def test_what_components_ask_for_is_met_left_out_or_overridden_with_a_reason(name):
    chosen, found = MATRICES[name], versions(name, "aarch64")
    for wanted in map(Requirement, (line for one in chosen.components.values() for line in one.requires)):
        package = canonicalize_name(wanted.name)
        if package not in chosen.lock.exclude and not wanted.specifier.contains(found[package], prereleases=True):
            assert package in chosen.lock.override, (wanted, found[package])


def test_every_override_is_needed():
    """By what a component asks for in one of the matrices; torch's, by torch-npu's two wheels."""
    needed = set()
    for name in NPU:
        found = versions(name, "aarch64")
        for wanted in map(Requirement, lock.asked(MATRICES[name])):
            package = canonicalize_name(wanted.name)
            if not wanted.specifier.contains(found[package], prereleases=True):
                needed.add(package)
    assert needed == MATRICES["performance"].lock.override.keys() - {"torch"}


def test_the_command_line_and_the_tests_of_the_project_are_told_apart():
    """The image holds what the command line needs, at the cpu matrix's version or an older one, and no test runner."""
    for name in NPU:
        wanted = MATRICES[name].requirements
        assert {"invoke", "rich", "pydantic", "pyyaml", "packaging", "psutil", "libcst", "hydra-core", "uv"} <= set(
            wanted
        )
        assert not {"pytest", "pytest-xdist", "hypothesis", "ruff"} & versions(name, "aarch64").keys()


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


@pytest.mark.parametrize("command", [lock.write, lock.check])
def test_a_matrix_without_a_lock_table(monkeypatch, command):
    without = {name: one.model_copy(update={"lock": None}) for name, one in MATRICES.items() if name != "cpu"}
    monkeypatch.setattr(matrix, "load", lambda name: {**MATRICES, **without}[name])
    with pytest.raises(UserError, match=r"matrix\.toml has no \[commercial\.lock\]; `invoke lock` knows cpu") as raised:
        command("commercial")
    assert raised.value.code == 2


def test_without_a_name_all_locks_are_meant(monkeypatch):
    seen = []
    monkeypatch.setattr(lock, "check", lambda name: seen.append(name) or (name == "commercial"))
    assert lock.run(None, again=True) == 1 and seen == list(MATRICES)
    assert lock.run("cpu", again=True) == 0 and seen[3:] == ["cpu"]
    assert [lock.lock_file(name).name for name in MATRICES] == [
        "requirements.lock", "requirements-commercial.lock", "requirements-cpu.lock"
    ]  # fmt: skip


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


def uv(*arguments, **further) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "uv", "pip", "install", *map(str, arguments)]
    environment = uv_environment(sys.executable)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, **further)


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NPU)
def test_a_lock_is_closed(tmp_path, name, machine):
    """With requirements followed and hashes asked for, the lock is all that is needed, for either machine.

    x86_64 without torch, whose build lies elsewhere, and without what is left out, which its wheels name.
    """
    chosen, text, excluded = MATRICES[name], LOCKS[name], set()
    if machine in chosen.lock.elsewhere:
        excluded = chosen.lock.elsewhere[machine].keys() | chosen.lock.exclude.keys()
        elsewhere = tuple(f"{package}==" for package in chosen.lock.elsewhere[machine])
        text = "\n".join(one for one in re.split(r"\n(?=\w)", text) if not one.startswith(elsewhere))
    (tmp_path / "some.lock").write_text(text)
    (tmp_path / "excluded.txt").write_text("\n".join(excluded))
    done = uv(
        "--dry-run", "--require-hashes", "--no-build-isolation", "--target", tmp_path / "nowhere",
        "--python-version", chosen.component("python").version, "--python-platform", f"{machine}-manylinux_2_35",
        "--excludes", tmp_path / "excluded.txt", "--requirements", tmp_path / "some.lock",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    installed = dict(re.findall(r"^ \+ (\S+)==(\S+)$", done.stderr, re.MULTILINE))
    assert installed == {k: v for k, v in versions(name, machine).items() if k not in excluded}


@pytest.mark.network
@pytest.mark.parametrize("tampered", [False, True])
def test_a_file_that_is_not_the_one_of_the_lock_is_not_installed(tmp_path, tampered):
    """As the image installs: one digit of a hash decides."""
    (entry,) = re.findall(r"^invoke==.*(?:\n {4}.*)*\n", LOCKS["performance"], re.MULTILINE)
    place = entry.index("sha256:") + 40
    if tampered:
        entry = entry[:place] + ("0" if entry[place] != "0" else "1") + entry[place + 1 :]
    (tmp_path / "one.lock").write_text(entry)
    venv.create(tmp_path / "venv", with_pip=False)
    done = uv(
        "--python", tmp_path / "venv" / "bin" / "python", "--require-hashes", "--no-deps", "--no-build-isolation",
        "--requirements", tmp_path / "one.lock",
    )  # fmt: skip
    there = list((tmp_path / "venv").glob("lib/*/site-packages/invoke/__init__.py"))
    assert (done.returncode != 0, bool(there)) == (tampered, not tampered), done.stderr
    assert ("hash mismatch" in done.stderr.lower()) == tampered, done.stderr
