"""vLLM with vllm-ascend, unedited, on the emulated NPU: its tokens are those of transformers on the CPU.

Eager and both graph modes, weights loaded into the running engine, sleep mode, tensor and expert parallelism. One
engine a process; the model is made here.
"""

import json
from pathlib import Path

import pytest

from tests.emulator.processes import run, run_ranks

pytest.importorskip("vllm_ascend")

HERE = Path(__file__).parent
GRAPHS = {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": 0,
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": 1,
    "VLLM_ASCEND_ENABLE_NZ": 0,
    "HF_HUB_OFFLINE": 1,
    "TASK_QUEUE_ENABLE": 1,
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Model, second weights and expected tokens, made by a process without the emulator."""
    path = tmp_path_factory.mktemp("vllm")
    run(HERE / "vllm_reference.py", path, TORCH_DEVICE_BACKEND_AUTOLOAD="0", HF_HUB_OFFLINE="1")
    return path


@pytest.fixture(scope="module")
def expected(folder):
    found = json.loads((folder / "expected.json").read_text())
    assert found["old"] != found["new"]
    assert len({tuple(tokens) for tokens in found["old"]}) == len(found["old"]), "the prompts' answers do not differ"
    return found


def results(process):
    line = next(line for line in process.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def run_case(folder, steps, ranks=0, trace=None, environment=None, **arguments):
    """The steps' results, a list for each rank where ranks are asked for."""
    extra = {**ENVIRONMENT, **(environment or {}), "NPU_EMULATOR_TRACE": trace, "VLLM_CACHE_ROOT": folder / "cache"}
    command = (HERE / "vllm_case.py", folder, ",".join(steps), json.dumps(arguments))
    if ranks:
        return [results(p) for p in run_ranks(*command[:1], ranks, *command[1:], timeout=300, **extra)]
    return results(run(*command, timeout=300, **extra))


def traced(trace):
    return [json.loads(path.read_text()) for path in sorted(trace.glob("*.json"))]


def test_eager_and_memory(folder, expected, tmp_path):
    """The size of the KV cache follows from the emulated memory: half of it may be used."""
    (_, tokens), (_, (blocks, used, total)) = run_case(
        folder,
        ["generate", "memory"],
        trace=tmp_path,
        environment={"NPU_EMULATOR_MEMORY_GIB": 0.5},
        enforce_eager=True,
        gpu_memory_utilization=0.5,
    )
    assert tokens == expected["old"]
    assert total == 1 << 29
    cache = blocks * 128 * 2 * 2 * 2 * 64 * 4  # blocks x tokens x layers x (key, value) x heads x head_dim x bytes
    assert 0.2 * total < cache < used <= 0.5 * total
    (trace,) = traced(tmp_path)
    assert trace["graphs"]["captured"] == 0
    called = {name for name, row in trace["operators"].items() if row["forward"]}
    assert {"_npu_reshape_and_cache", "_npu_paged_attention", "npu_moe_gating_top_k_softmax"} <= called


def test_piecewise_graph_reload_and_sleep(folder, expected, tmp_path):
    """Fresh memory is poisoned, so that what was not restored shows."""
    steps = [
        "generate",
        "sleep_1",
        "wake",
        "generate",
        "load_new",
        "generate",
        "sleep_2",
        "wake",
        "load_new",
        "generate",
    ]
    found = run_case(
        folder,
        [*steps, "counters"],
        trace=tmp_path,
        environment={"NPU_EMULATOR_POISON": "fresh"},
        enable_sleep_mode=True,
        num_gpu_blocks_override=16,
        gpu_memory_utilization=0.1,
        **GRAPHS,
    )
    answers = [value for step, value in found if step == "generate"]
    assert answers[0] == expected["old"], "graph"
    assert answers[1] == expected["old"], "after sleep level 1"
    assert answers[2] == expected["new"], "after load_weights"
    assert answers[3] == expected["new"], "after sleep level 2 and load_weights"
    freed = [value for step, value in found if step.startswith("sleep")]
    cache = 16 * 128 * 2 * 2 * 2 * 64 * 4
    assert min(freed) > cache
    assert [value for step, value in found if step == "wake"] == [False, True], "NaN weights after sleep level 1, 2"
    counters = found[-1][1]
    (trace,) = traced(tmp_path)
    assert counters["num_cudagraph_captured"] == trace["graphs"]["captured"] == 9  # 3 sizes x (layers + 1) pieces
    assert trace["graphs"]["replayed"] > 9
    assert trace["vllm"]["num_graphs_seen"] == 1
    assert trace["memory"]["unmaps"] == trace["memory"]["maps"] > 0
    assert trace["nz_partial_writes"] == 0


def test_full_decode_graph_updates_its_task_groups(folder, expected, tmp_path):
    """One layer: 0.11.0rc1 renews the arguments of the last layer only (update_attn_params); others wait for ever."""
    arguments = {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4], "cudagraph_mode": "FULL_DECODE_ONLY"}}
    ((_, tokens),) = run_case(
        folder,
        ["generate"],
        trace=tmp_path,
        model="one_layer",
        num_gpu_blocks_override=16,
        gpu_memory_utilization=0.1,
        **arguments,
    )
    assert tokens == expected["one_layer"]
    (trace,) = traced(tmp_path)
    assert trace["graphs"]["captured"] == 3
    assert trace["graphs"]["replayed"] > 0


def test_tensor_and_expert_parallel_graph(folder, expected, tmp_path):
    """Two processes as verl's sync mode starts them: collectives are on the tape, and weights arrive on both ranks."""
    for rank, found in enumerate(
        run_case(
            folder,
            ["generate", "load_new", "generate"],
            ranks=2,
            trace=tmp_path,
            tensor_parallel_size=2,
            enable_expert_parallel=True,
            distributed_executor_backend="external_launcher",
            num_gpu_blocks_override=16,
            gpu_memory_utilization=0.1,
            **GRAPHS,
        )
    ):
        assert found[0][1] == expected["old"], f"rank {rank}"
        assert found[2][1] == expected["new"], f"rank {rank} after load_weights"
    traces = traced(tmp_path)
    assert [t["rank"] for t in traces] == ["0", "1"]
    assert all(t["graphs"]["captured"] > 0 and t["graphs"]["replayed"] > 0 for t in traces)
