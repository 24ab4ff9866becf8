"""Releases beside the pinned commits, from the package index: each patch knows which of them it is for."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from emulator import site
from patches import catalogue, engine, places
from tests.emulator.processes import run as run_code
from tests.patches.upstream_code import apply, definition, statements

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

# Imports verl from each folder in turn and prints what `report(DataProto)` returns of each.
IN_TURN = """
import json, sys
import tensordict, torch

found = []
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]
    from verl import DataProto

    found.append(report(DataProto))
print(json.dumps({"version": tensordict.__version__, "found": found}))
"""
# A batch that is moved from the device to the host and read at once.
MOVED = """
def report(DataProto):
    own = tensordict.TensorDictBase._sync_all.__module__.partition(".")[0] == "tensordict"
    rows = torch.arange(4096.0)
    batch = DataProto.from_dict({"one": rows.to("npu"), "two": rows.to("npu") * 2}).to("cpu").batch
    late = [name for name in batch.keys() if not torch.equal(batch[name], rows * (2 if name == "two" else 1))]
    return {"late": late, "own": own}
"""
# What does not import, and two ranks' metrics put together.
STARTED = """
def report(DataProto):
    import importlib

    errors = []
    for module in ("verl.workers.actor.dp_actor", "verl.workers.critic.dp_critic"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            errors.append(str(error).partition(" (")[0])
    ranks = [DataProto(meta_info={"metrics": {"actor/pg_loss": [loss]}}) for loss in (1.0, 3.0)]
    return errors, DataProto.concat(ranks).meta_info["metrics"]
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


@pytest.fixture(scope="module")
def compare(release, tmp_path_factory):
    """What a report finds of verl 0.5.0 as it is, and with all patches, in one process; the version of tensordict."""
    folder = tmp_path_factory.mktemp("patched") / "verl"
    shutil.copytree(release("verl==0.5.0"), folder)
    engine.apply(engine.judge(catalogue.patches("commercial"), places.place(folder)))

    def call(report: str, version: str = "0.10.0") -> tuple[list, str]:
        path = f"{site.ensure()}:{release(f'tensordict=={version}')}"
        done = run_code(report + IN_TURN, release("verl==0.5.0"), folder, PYTHONPATH=path)
        answer = json.loads(done.stdout.splitlines()[-1])
        return answer["found"], answer["version"]

    return call


@pytest.mark.parametrize("version", ["0.9.1", "0.10.0"])
def test_batches_are_read_after_they_have_arrived(compare, version):
    """With each tensordict itself; copies that do not block arrive late on the emulated device."""
    found, used = compare(MOVED, version)
    assert used == version
    fine = {"late": [], "own": True}
    if version == "0.9.1":
        assert found == [{"late": ["one", "two"], "own": True}, {"late": [], "own": False}]
    else:
        assert found == [fine, fine], "it waits by itself, and the patch leaves it alone"


def test_workers_import_and_metrics_are_those_of_all_ranks(compare):
    """verl/index-first-axis with the installed transformers, verl/metrics-all-ranks in verl's own concat."""
    (before, after), _ = compare(STARTED)
    missing = "cannot import name 'index_first_axis' from 'transformers.integrations.npu_flash_attention'"
    assert before == [[missing] * 2, {"actor/pg_loss": [1.0]}]
    assert after == [[], {"actor/pg_loss": [1.0, 3.0]}]


def test_the_kind_of_attention_is_that_of_this_step(release, write):
    """vllm-ascend 0.11.0rc0's own statements and choice, which has the fault of the performance commit.

    Two requests of 3 new tokens, 4 of the second in the cache; the step before left the lengths (3, 3).
    """
    module, scope = "vllm_ascend.worker.model_runner_v1", "NPUModelRunner._prepare_inputs"
    path = module.replace(".", "/") + ".py"
    root = write({path: (release("vllm-ascend==0.11.0rc0") / path).read_bytes()})
    kinds = SimpleNamespace(PrefillNoCache="no cache", PrefillCacheHit="cache hit", ChunkedPrefill="chunks")
    config = SimpleNamespace(ascend_scheduler_config=SimpleNamespace(enabled=True))
    names = {"np": np, "AscendAttentionState": kinds, "get_ascend_config": lambda: config}
    found = []
    for patched in (False, True):
        if patched:
            assert apply("vllm-ascend/attention-state", root).state == "pending"
        runner = SimpleNamespace(seq_lens_np=np.array([3, 3, 0]), chunked_prefill_enabled=False)
        runner.input_batch = SimpleNamespace(num_computed_tokens_cpu=np.array([0, 4]))
        choose = definition(root, module, "NPUModelRunner._build_attn_state", names)
        runner._build_attn_state = lambda *step, runner=runner, choose=choose: choose(runner, *step)
        given = {"num_reqs": 2, "num_scheduled_tokens": np.array([3, 3]), "num_valid_tokens": np.array([3, 3])}
        space = {"self": runner, **given}
        code = statements(root, module, scope, "attn_state = self._build_attn", "self.seq_lens_np[:num_reqs] =")
        exec(code, space)
        found.append(space["attn_state"])
    assert found == ["no cache", "cache hit"]


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "invoke", *arguments]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
