"""The gate names what is not as the matrix says, on environments that are made here, small and wrong in one place."""

import json
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from image.steps import components, gate
from image.steps.step import IMAGES, StepError, contents, pins, run

MATRIX = "performance"


def distribution(folder: Path, name: str, version: str, **files: str) -> Distribution:
    """An installed package without modules."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    for file, text in files.items():
        (info / file).write_text(text)
    return Distribution.at(info)


def locked() -> dict[str, str]:
    """What an environment with the whole lock and all components has."""
    found = gate.locked_versions(MATRIX)
    built = {how["package"]: pins(MATRIX)[name].version or "1.0" for name, how in contents()["components"].items()}
    return found | built


@pytest.fixture
def installed():
    return locked()


def test_an_environment_as_locked_passes(installed):
    assert list(gate.version_faults(MATRIX, installed)) == []
    # vLLM says in its version for what it was built
    assert list(gate.version_faults(MATRIX, installed | {"vllm": f"{installed['vllm']}+empty"})) == []


@pytest.mark.parametrize(
    "change, fault",
    [
        ({"ray": "2.47.0"}, "ray: expected 2.46.0, found 2.47.0"),
        ({"ray": None}, "ray: expected 2.46.0, found none"),
        ({"verl": None}, "verl: expected it installed, found none"),
        ({"vllm": "0.12.0"}, "vllm: expected 0.11.0, found 0.12.0"),
        ({"triton": "3.3.1"}, "triton 3.3.1: expected only what the lock names, found it installed"),
    ],
)
def test_another_version_a_missing_and_a_further_package_are_faults(installed, change, fault):
    changed = {name: version for name, version in (installed | change).items() if version}
    assert list(gate.version_faults(MATRIX, changed)) == [fault]


@pytest.mark.parametrize(
    "complaint, fault",
    [
        ("xgrammar 0.1.25 requires triton, which is not installed.", False),  # [lock.exclude]
        ("verl 0.5.0 has requirement tensordict<=0.9.1, but you have tensordict 0.10.0.", False),  # [lock.override]
        ("xgrammar 0.1.25 has requirement triton<3, but you have triton 3.3.", True),
        ("verl 0.6.0 requires codetiming, which is not installed.", True),
        ("vllm 0.11.0 has requirement openai>=1.99.1, but you have openai 1.0.", True),
        ("torch-npu 2.7.1 is not supported on this platform", True),
    ],
)
@pytest.mark.parametrize("matrix", IMAGES)
def test_requirements_that_are_not_met_need_a_reason(complaint, fault, matrix):
    assert list(gate.requirement_faults(matrix, [complaint])) == ([complaint.rstrip(".")] if fault else [])


@pytest.mark.parametrize(
    "script, complaints",
    [
        ("", []),
        ("print('No broken requirements found.')", []),
        ("print('a 1 requires b, which is not installed.'); sys.exit(1)", ["a 1 requires b, which is not installed."]),
        ("sys.exit('ERROR: Exception:')", ["pip check: ERROR: Exception:"]),
    ],
)
def test_a_pip_check_that_ends_badly_is_no_pass(tmp_path, monkeypatch, script, complaints):
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").write_text("")
    (tmp_path / "pip" / "__main__.py").write_text(f"import sys\n{script}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gate.pip_check() == complaints


def test_rows_of_the_allow_list_have_reasons():
    assert all(row["why"] and row["package"] and row["requires"] for row in contents().get("allowed", []))


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Sources and packages of all components at the matrix's commits; the folder of sources."""
    site, sources = tmp_path / "site", tmp_path / "sources"
    sources.mkdir()
    record = {}
    for name, how in contents()["components"].items():
        components.record_commit(distribution(site, how["package"], "1.0"), pins(MATRIX)[name])
        record[name] = {"commit": pins(MATRIX)[name].commit}
    (sources / "sources.json").write_text(json.dumps(record))
    monkeypatch.setattr(sys, "path", [str(site)])
    return sources


def test_commits_of_sources_and_packages_are_the_matrixs(built):
    assert list(gate.commit_faults(MATRIX, built)) == []


def test_another_commit_is_a_fault_where_it_is_found(built):
    record = json.loads((built / "sources.json").read_text())
    (built / "sources.json").write_text(json.dumps(record | {"verl": {"commit": "0" * 40}}))
    expected = pins(MATRIX)["verl"].commit
    assert list(gate.commit_faults(MATRIX, built)) == [f"verl: expected commit {expected} fetched, found {'0' * 40}"]


def test_a_package_records_its_commit_as_pip_does(tmp_path):
    package = distribution(tmp_path, "verl", "0.6.0", **{"direct_url.json": '{"url": "file:///x", "dir_info": {}}'})
    assert components.record_commit(package, pins(MATRIX)["verl"]) == "0.6.0"
    origin = json.loads(package.read_text("direct_url.json"))
    assert origin["vcs_info"] == {"vcs": "git", "requested_revision": "main", "commit_id": pins(MATRIX)["verl"].commit}
    assert [str(file) for file in package.files if file.hash] == ["verl-0.6.0.dist-info/direct_url.json"]
    recorded = next(file for file in package.files if file.hash)
    assert recorded.size == len(package.read_text("direct_url.json"))


def test_a_component_records_the_commit_that_was_fetched(built, monkeypatch):
    (built / "sources.json").write_text(json.dumps({name: {"commit": name} for name in contents()["components"]}))
    seen = {}
    monkeypatch.setattr(components, "install", lambda pin, how, source, matrix: seen.update({source.name: pin.commit}))
    components.install_all(MATRIX, str(built))
    assert seen == {name: name for name in contents()["components"]}


def test_a_module_that_is_not_there_need_not_have_a_package():
    assert not gate._is_there("no_such_package.training") and gate._is_there("json.tool")


def test_the_abi_of_torch_is_the_one_that_the_entry_point_chooses(monkeypatch):
    assert list(gate.abi_faults()) == []
    monkeypatch.setattr(gate, "CXX11_ABI", 0)
    assert list(gate.abi_faults()) == [
        "torch: expected C++ ABI 0, which entrypoint.sh gives nnal's set_env.sh, found 1"
    ]


def test_a_module_that_does_not_import_is_named():
    assert list(gate._import(["json", "tomllib"], {})) == []
    (fault,) = gate._import(["json", "no_such_module"], {})
    assert fault.endswith("no_such_module: ModuleNotFoundError: No module named 'no_such_module'")


def test_all_faults_are_shown_and_the_last_line_is_the_first(monkeypatch, capsys):
    monkeypatch.setattr(gate, "version_faults", lambda *_: ["one", "two"])
    for other in ("requirement_faults", "commit_faults", "import_faults", "abi_faults"):
        monkeypatch.setattr(gate, other, lambda *_: [])
    monkeypatch.setattr(gate, "pip_check", lambda: [])
    assert run("gate", gate.judge, [MATRIX, "/nowhere"]) == 1
    said = capsys.readouterr()
    assert said.out == "gate: one\ngate: two\n"
    assert (
        said.err
        == f"image: gate: expected the environment of matrix {MATRIX}, found one and 1 more; see the lines above\n"
    )


def test_a_build_that_fails_ends_in_its_telling_line(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "absent_backend"\n')
    pin = pins(MATRIX)["verl"]
    with pytest.raises(StepError) as error:
        components.install(pin, {"package": "verl"}, tmp_path, MATRIX)
    assert str(error.value).startswith(f"expected verl {pin.commit} to build, found ") and "\n" not in str(error.value)
    assert "absent_backend" in str(error.value)


def test_a_build_gets_the_matrixs_version_instead_of_gits():
    how = contents()["components"]["vllm"]
    added = components.build_environment(pins(MATRIX)["vllm"], how)
    assert added["SETUPTOOLS_SCM_PRETEND_VERSION"] == pins(MATRIX)["vllm"].version
    assert added["VLLM_TARGET_DEVICE"] == "empty"
