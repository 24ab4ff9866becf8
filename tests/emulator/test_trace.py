"""The trace: what each process writes into the folder NPU_EMULATOR_TRACE."""

import json

import torch
from torch_npu import trace

from tests.emulator.processes import finish, run, run_ranks, start

WORK = """
import torch, torch_npu
x = torch.ones(2, 8, device="npu", requires_grad=True)
torch_npu.npu_swiglu(x).sum().backward()
with torch.no_grad(): torch_npu.npu_swiglu(x.detach().half())
graph = torch.npu.NPUGraph()
y = torch.zeros(3, device="npu")
with torch.npu.graph(graph): y.add_(1)
graph.replay(); graph.replay()
"""


def documents(folder):
    assert not list(folder.glob("*.part")), "a half-written file is left"
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def test_operators_graphs_and_writer(tmp_path):
    run(WORK, NPU_EMULATOR_TRACE=tmp_path, RANK=None)
    ((name, found),) = documents(tmp_path).items()
    assert name == f"ranknone-{found['pid']}.json"
    forward = found["operators"]["npu_swiglu"]
    assert (forward["forward"], forward["backward"]) == (2, 0)
    assert (forward["shapes"], forward["dtypes"]) == ([[2, 8]], ["float32"])
    backward = [row for row in found["operators"].values() if row["backward"]]
    assert [row["backward"] for row in backward] == [1]
    assert found["graphs"] == {"captured": 1, "replayed": 2, "recorded": 1}
    assert found["patches"] is None
    assert found["vllm"] is None
    assert found["nz_partial_writes"] == 0


def test_each_rank_has_its_file(tmp_path):
    code = 'import torch; torch.ones(1, device="npu")'
    run_ranks(code, 2, NPU_EMULATOR_TRACE=tmp_path)
    assert [row["rank"] for row in documents(tmp_path).values()] == ["0", "1"]


def test_a_rank_learnt_late_renames_the_file(tmp_path):
    code = """
import os, torch, torch_npu.trace
torch.ones(1, device="npu")
torch_npu.trace._writer.write()
os.environ["RANK"] = "5"
"""
    run(code, NPU_EMULATOR_TRACE=tmp_path, RANK=None)
    ((name, found),) = documents(tmp_path).items()
    assert name == f"rank5-{found['pid']}.json"


def test_a_killed_process_has_written_before(tmp_path):
    code = 'import torch, time; torch.ones(1, device="npu"); print("used", flush=True); time.sleep(100)'
    process = start(code, NPU_EMULATOR_TRACE=tmp_path / "new" / "folder")
    process.stdout.readline()
    for _ in range(100):
        try:
            process.wait(0.1)
        except Exception:
            if list((tmp_path / "new" / "folder").glob("*.json")):
                break
    process.kill()
    finish(process, check=False)
    assert len(documents(tmp_path / "new" / "folder")) == 1


def test_a_process_that_never_used_the_device_writes_nothing(tmp_path):
    run("import torch; torch.ones(1)", NPU_EMULATOR_TRACE=tmp_path)
    assert documents(tmp_path) == {}


def test_without_the_variable_nothing_is_written(tmp_path):
    run(f"import os; os.chdir({str(tmp_path)!r}); import torch; torch.ones(1, device='npu')", NPU_EMULATOR_TRACE=None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    code = 'import torch; torch.ones(1, device="npu"); print("done")'
    result = run(code, NPU_EMULATOR_TRACE=tmp_path / "file")
    assert result.stdout == "done\n"
    assert "the trace could not be written" in result.stderr


def test_a_forked_child_has_its_own_counts(tmp_path):
    code = """
import os, torch, torch_npu
torch_npu.trace.record("parent")
pid = os.fork()
if pid == 0:
    torch_npu.trace.record("child"); torch_npu.trace._writer.write(); os._exit(0)
os.waitpid(pid, 0)
"""
    run(code, NPU_EMULATOR_TRACE=tmp_path)
    assert sorted(list(row["operators"]) for row in documents(tmp_path).values()) == [["child"], ["parent"]]


def test_mindspeed_patches_and_vllm_counters_are_read(tmp_path):
    code = """
import sys, types, torch
def old(): ...
def new(): ...
patch = types.SimpleNamespace
class Manager:
    patches_info = {"a.b": patch(patch_func=new, wrappers=[old], is_applied=True),
                    "c.d": patch(patch_func=new, wrappers=[], is_applied=False)}
sys.modules["mindspeed.patch_utils"] = types.SimpleNamespace(MindSpeedPatchesManager=Manager)
counter = types.SimpleNamespace(num_cudagraph_captured=4, num_models_seen=0)
sys.modules["vllm.compilation.counter"] = types.SimpleNamespace(compilation_counter=counter)
torch.compile = new
torch.ones(1, device="npu")
"""
    run(code, NPU_EMULATOR_TRACE=tmp_path)
    ((_, found),) = documents(tmp_path).items()
    assert found["patches"] == {"a.b": ["__main__.new", "__main__.old"]}
    assert found["vllm"] == {"num_cudagraph_captured": 4}
    assert found["torch_compile"] == "__main__"


def test_writes_into_a_part_of_nz_storage_are_counted():
    import torch_npu

    before = trace.counter("nz_partial_writes")
    x = torch_npu.npu_format_cast(torch.ones(4, 32, device="npu"), 29)
    x[1].copy_(torch.zeros(32, device="npu"))
    assert trace.counter("nz_partial_writes") - before == 1
    x.copy_(torch.zeros(4, 32, device="npu"))
    torch.ones(4, 32, device="npu")[1].zero_()
    assert trace.counter("nz_partial_writes") - before == 1
