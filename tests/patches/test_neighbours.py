"""Releases beside the pinned commits, from the package index: each patch knows which of them it is for."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emulator import site
from patches import catalogue, engine, places
from tests.emulator.processes import run as run_code
from tests.patches.upstream_code import apply

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

# Batches that verl moves from the device to the host and reads at once, by the verl of each folder in turn.
MOVED = """
import json, sys
import tensordict, torch

found = []
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]
    from verl import DataProto

    own = tensordict.TensorDictBase._sync_all.__module__.partition(".")[0] == "tensordict"
    rows = torch.arange(4096.0)
    batch = DataProto.from_dict({"one": rows.to("npu"), "two": rows.to("npu") * 2}).to("cpu").batch
    late = [name for name in batch.keys() if not torch.equal(batch[name], rows * (2 if name == "two" else 1))]
    found.append({"late": late, "own": own})
print(json.dumps({"version": tensordict.__version__, "found": found}))
"""


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


@pytest.mark.parametrize("version", ["0.9.1", "0.10.0"])
def test_batches_are_read_after_they_have_arrived(release, tmp_path, version):
    """verl 0.5.0, as it is and patched, with each tensordict; copies that do not block arrive late on the device."""
    patched = tmp_path / "patched"
    shutil.copytree(release("verl==0.5.0"), patched)
    assert apply("verl/tensordict-sync", patched).state == "pending"
    folders = [str(release("verl==0.5.0")), str(patched)]
    done = run_code(MOVED, *folders, PYTHONPATH=f"{site.ensure()}:{release(f'tensordict=={version}')}")
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["version"] == version
    fine = {"late": [], "own": True}
    if version == "0.9.1":
        assert report["found"] == [{"late": ["one", "two"], "own": True}, {"late": [], "own": False}]
    else:
        assert report["found"] == [fine, fine], "it waits by itself, and the patch leaves it alone"


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "invoke", *arguments]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
