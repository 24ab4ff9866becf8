"""Releases beside the pinned commits, from the package index: each patch knows which of them it is for."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patches import catalogue, engine, places

HOME = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.network

RELEASES = {
    "verl==0.5.0": "commercial",
    "vllm-ascend==0.11.0rc0": "performance",
    "vllm-ascend==0.11.0rc2": "performance",
}
STATES = {
    "verl==0.5.0": {
        "verl/batch-layout": "pending",
        "verl/expert-gather": "pending",
        "verl/index-first-axis": "pending",
        "verl/log-prob-entropy": "pending",
        "verl/metrics-all-ranks": "pending",
        "verl/real-compile": "pending",
        "verl/resume-moments": "pending",
        "verl/tensordict-sync": "pending",  # asks for the version when it runs
    },
    "vllm-ascend==0.11.0rc0": {
        "vllm-ascend/attention-state": "pending",
        "vllm-ascend/moe-layout": "pending",
        "vllm-ascend/torch-npu-pin": "pending",  # a dated build, as at the performance commit
    },
    "vllm-ascend==0.11.0rc2": {
        "vllm-ascend/attention-state": "not needed",  # corrected upstream
        "vllm-ascend/moe-layout": "pending",
        "vllm-ascend/torch-npu-pin": "not needed",
    },
}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Unpacks a release, a wheel or a source archive without what it depends on, once."""
    unpacked = {}

    def get(name: str) -> Path:
        if name not in unpacked:
            folder = tmp_path_factory.mktemp("release")
            form = ["--no-binary", ":all:", "--no-build-isolation"] if "ascend" in name else ["--only-binary", ":all:"]
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                *form,
                "--dest",
                str(folder),
                name,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                pytest.skip(f"{name} is not to be had from the package index: {done.stderr.strip()[-200:]}")
            (archive,) = folder.iterdir()
            shutil.unpack_archive(archive, folder / "root", "zip" if archive.suffix == ".whl" else "gztar")
            inside = [path for path in (folder / "root").iterdir() if path.is_dir()]
            unpacked[name] = inside[0] if "ascend" in name else folder / "root"
        return unpacked[name]

    return get


def states(root: Path, matrix: str) -> dict[str, str]:
    return {one.patch.id: one.state for one in engine.judge(catalogue.patches(matrix), places.place(root)).verdicts}


def contents(root: Path) -> dict[Path, str]:
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", STATES)
def test_each_patch_knows_its_releases(release, name):
    found = states(release(name), RELEASES[name])
    assert {patch: found[patch] for patch in STATES[name]} == STATES[name]
    others = {patch: state for patch, state in found.items() if patch not in STATES[name]}
    assert set(others.values()) == {"not needed"}, others


def test_an_older_release_is_patched_and_put_back(release, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(release("verl==0.5.0"), root)
    before = contents(root)
    run("patches.apply", "--matrix", "commercial", "--root", str(root))
    after = contents(root)
    changed = [path for path in after if path.suffix == ".py" and after[path] != before.get(path)]
    for path in changed:
        compile(path.read_bytes(), path, "exec")
    run("patches.revert", "--root", str(root))
    assert changed and contents(root) == before


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "invoke", *arguments]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
