"""Manifest, SBOM, verbs and what tidying does: the same for the same contents, and readable where it is needed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import manifest
import matrix as matrices
from errors import UserError
from image import health
from image.steps import describe, gate, sbom, tidy
from image.steps.step import PROJECT
from recipes.compose import compose

DOCUMENT = {
    "format": 1,
    "matrix": "performance",
    "revision": "",
    "created": "2026-01-01T00:00:00Z",
    "system": {"id": "ubuntu", "version": "22.04"},
    "components": {
        "verl": {"repository": "https://github.com/verl-project/verl", "install": "git", "commit": "c" * 40}
    },
    "packages": {"torch": "2.7.1+cpu"},
    "debian": {"g++": "4:12.2.0-3"},
}


@pytest.fixture
def image(tmp_path, monkeypatch):
    """Writes a manifest, as in an image; returns how."""

    def write(text):
        (tmp_path / "manifest.json").write_text(text if isinstance(text, str) else json.dumps(text))
        monkeypatch.setenv(manifest.VARIABLE, str(tmp_path / "manifest.json"))

    return write


def test_the_manifest_says_what_is_here_and_only_the_epoch_dates_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1760000000")
    monkeypatch.setenv("BASE_IMAGE", "base@sha256:1")
    monkeypatch.setenv("REVISION", "f" * 40)
    monkeypatch.setattr(describe, "patches", lambda matrix: [{"id": "verl/x", "state": "applied"}])
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        describe.describe("performance", str(tmp_path / name))
        texts.append((tmp_path / name / "manifest.json").read_text() + (tmp_path / name / "sbom.json").read_text())
    assert texts[0] == texts[1]
    monkeypatch.setenv(manifest.VARIABLE, str(tmp_path / "one" / "manifest.json"))
    found = manifest.read()
    assert found["created"] == "2025-10-09T08:53:20Z" and found["base"] == "base@sha256:1"
    assert found["revision"] == "f" * 40 and found["packages"]["ray"] == "2.46.0"
    assert f"ID={found['system']['id']}" in Path("/etc/os-release").read_text().split()
    assert found["components"]["verl"]["commit"] == matrices.load("performance").component("verl").commit
    assert found["lock"]["file"] == "requirements.lock"
    assert manifest.matrix() == "performance"
    verbs = (tmp_path / "one" / "verbs").read_text().split()
    assert {"doctor", "train", "test", "recipes", "recipes.show", "patches.list"} <= set(verbs)


def test_the_sbom_names_every_part_by_its_package_url():
    made = sbom.made(DOCUMENT)
    assert {part["purl"] for part in made["components"]} == {
        f"pkg:github/verl-project/verl@{'c' * 40}",
        "pkg:pypi/torch@2.7.1%2Bcpu",
        "pkg:deb/ubuntu/g%2B%2B@4%3A12.2.0-3?distro=ubuntu-22.04",
    }
    assert made["specVersion"] == "1.5" and made["metadata"]["timestamp"] == DOCUMENT["created"]
    assert made == sbom.made(DOCUMENT) != sbom.made(DOCUMENT | {"packages": {"torch": "2"}})


def test_outside_of_images_there_is_no_manifest(monkeypatch, tmp_path):
    monkeypatch.setenv(manifest.VARIABLE, str(tmp_path / "none"))
    assert manifest.read() is None and manifest.matrix() is None


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2, "matrix": "x"}', '{"format": 1}'])
def test_a_damaged_manifest_is_a_message(image, text):
    image(text)
    with pytest.raises(UserError, match="expected an image's manifest"):
        manifest.read()


def test_in_an_image_its_matrix_is_the_default_of_recipes_that_are_for_it(image):
    image(DOCUMENT | {"matrix": "commercial"})
    assert compose("qwen3-235b-30k").matrix == "commercial"
    assert compose("qwen3-235b-30k", matrix="performance").matrix == "performance"
    assert compose("qwen3-235b-30k", ["stack=performance"]).matrix == "performance"
    assert compose("smoke").matrix == "cpu"  # composed on the verl that is installed
    image(DOCUMENT | {"matrix": "cpu"})
    assert compose("qwen3-235b-30k").matrix == "performance"


def test_tidied_folders_are_equal_and_open_to_everybody(tmp_path):
    trees = []
    for name, mode in (("one", 0o600), ("two", 0o664)):
        folder = tmp_path / name / "same"
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "__pycache__" / "old.cpython-311.pyc").write_text("old")
        (folder / "uv_cache.json").write_text(name)
        (folder / "module.py").write_text("x = {'a', 'b'}\n")
        (folder / "module.py").chmod(mode)
        (folder / "broken.py").write_text("print 'for another Python'\n")
        (folder / "run.sh").write_text("")
        (folder / "run.sh").chmod(0o700)
        folder.chmod(0o777)
        os.utime(folder / "module.py", (mode, mode))
        tidy.tidy(str(folder))
        trees.append(
            {
                str(path.relative_to(folder)): (oct(path.stat().st_mode), path.is_file() and path.read_bytes())
                for path in sorted(folder.rglob("*"))
            }
        )
        assert folder.stat().st_mode & 0o777 == 0o755
    names = [name for name in trees[0] if not name.endswith(".pyc")]
    assert names == ["__pycache__", "broken.py", "module.py", "run.sh"]
    assert [name for name in trees[0] if name.endswith(".pyc")] == ["__pycache__/module.cpython-311.pyc"]
    assert {name: one[0][-3:] for name, one in trees[0].items()} == {
        name: one[0][-3:] for name, one in trees[1].items()
    }
    assert trees[0]["run.sh"][0].endswith("755") and trees[0]["module.py"][0].endswith("644")


def test_only_what_is_listed_is_taken_out(tmp_path, capsys):
    packages = tmp_path / "project" / ".venv" / "lib" / "python3.11" / "site-packages"
    kept = [packages / "torch" / "bin" / "torch_shm_manager", packages / "numpy" / "core.txt"]
    gone = [packages / "torch" / "bin" / "FileStoreTest", packages / "numpy" / "core" / "tests" / "data.txt"]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 600_000)
    tidy.tidy(str(tmp_path))
    assert all(path.is_file() for path in kept) and not any(path.exists() for path in gone)
    assert "without 1 MB" in capsys.readouterr().out


def test_a_module_mounted_over_a_compiled_one_counts(tmp_path):
    (tmp_path / "module.py").write_text("x = 1\n")
    tidy.tidy(str(tmp_path))
    (tmp_path / "module.py").write_text("x = 2\n")
    code = [sys.executable, "-c", "import module; print(module.x)"]
    done = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "2\n"


def test_the_health_check_says_what_is_wrong(image, monkeypatch, tmp_path):
    image(DOCUMENT)
    monkeypatch.setattr(health, "HOME", tmp_path)
    assert health.faults() == [
        f"expected a writable {tmp_path}/runs, found none for user {os.getuid()}; mount a volume that it may write"
    ]
    (tmp_path / "runs").mkdir()
    assert health.faults() == []
    monkeypatch.setattr(health, "RUNS_GB", 1e9)
    image("{")
    first, second = health.faults()
    assert first.startswith("expected the manifest ") and second.startswith("expected 1000000000.0 GB free in ")


@pytest.fixture
def entry(tmp_path):
    """Runs the entry point on a home of its own, whose `python` says what it is called with."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").write_text('#!/bin/sh\necho "python $*"\n')
    (home / "bin" / "python").chmod(0o755)
    (home / "verbs").write_text("doctor\ntest\n")
    text = (PROJECT / "image" / "entrypoint.sh").read_text().replace("/opt/ascend-rl", str(home))
    cann = home / "Ascend"
    (cann / "ascend-toolkit").mkdir(parents=True)
    (cann / "nnal" / "atb").mkdir(parents=True)
    (cann / "ascend-toolkit" / "set_env.sh").write_text("export CANN=$UNSET_VARIABLE$#\n")
    (cann / "nnal" / "atb" / "set_env.sh").write_text('export ATB="$CANN $*"\nfalse\n')
    library = home / "libjemalloc.so.2"
    library.write_text("")
    script = home / "entrypoint.sh"
    text = text.replace("/usr/local/Ascend", str(cann))
    script.write_text(text.replace("/usr/lib/aarch64-linux-gnu/libjemalloc.so.2", str(library)))

    def run(*arguments, machine="x86_64", **variables):
        (home / "bin" / "uname").write_text(f"#!/bin/sh\necho {machine}\n")
        (home / "bin" / "uname").chmod(0o755)
        path = f"{home / 'bin'}:{os.environ['PATH']}"
        command = ["bash", str(script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"PATH": path, **variables})

    return run


def test_the_entry_point_runs_verbs_options_and_any_command(entry):
    assert entry("test", "--quick").stdout.endswith("/project/cli.py test --quick\n")
    assert entry("--list").stdout.endswith("/project/cli.py --list\n")
    assert entry("echo", "a  b").stdout == "a  b\n"
    assert entry("sh", "-c", "exit 7").returncode == 7
    assert entry("no-such-thing").returncode == 127


def test_the_entry_point_reads_both_of_canns_environments_without_its_own_arguments(entry):
    """And says which C++ ABI it is: the one that the gate compares with torch's."""
    assert entry("sh", "-c", "echo [$CANN] [$ATB]").stdout == f"[0] [0 --cxx_abi={gate.CXX11_ABI}]\n"


def test_jemalloc_is_preloaded_on_arm_only(entry):
    said = [entry("sh", "-c", "echo $LD_PRELOAD", machine=one).stdout.strip() for one in ("x86_64", "aarch64")]
    assert said[0] == "" and said[1].endswith("/libjemalloc.so.2")
    added = entry("sh", "-c", "echo $LD_PRELOAD", machine="aarch64", LD_PRELOAD="/mine.so").stdout
    assert added.strip() == f"{said[1]}:/mine.so"


def test_the_folder_that_cann_writes_to_is_there(entry, tmp_path):
    assert entry("true", ASCEND_WORK_PATH=str(tmp_path / "a" / "b")).returncode == 0
    assert (tmp_path / "a" / "b").is_dir()


def test_steps_are_modules_that_the_dockerfile_names():
    named = {
        line for line in (PROJECT / "Dockerfile").read_text().replace("\\\n", " ").split() if "image.steps." in line
    }
    assert all(importlib.util.find_spec(name) for name in named)
    shown = {path.stem for path in Path(describe.__file__).parent.glob("*.py")} - {"__init__", "step", "sbom"}
    assert {name.rpartition(".")[2] for name in named} == shown


def test_smoke_composes_on_the_commercial_matrixs_verl(tmp_path, monkeypatch):
    """Its keys are the recorded ones of 796871d, written down as that verl's own configuration."""
    from omegaconf import OmegaConf

    from recipes import compose as composing

    commercial = composing.verl_defaults("commercial")
    (tmp_path / "ppo_megatron_trainer.yaml").write_text(OmegaConf.to_yaml(commercial))
    monkeypatch.setattr(composing, "verl_configs", lambda: tmp_path)
    composing.verl_defaults.cache_clear()
    try:
        config = compose("smoke", ["trainer.total_training_steps=2"]).config
    finally:
        composing.verl_defaults.cache_clear()
    assert config.ray_init.num_cpus == 8 and "ray_kwargs" not in config
    assert config.trainer.total_training_steps == 2
