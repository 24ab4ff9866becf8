"""A long log to measure triage with, and how long `grep -cE` takes to count the same signatures in it."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from checks import problems

# As processes of a run print them: with and without times, progress bars, steps, warnings that are harmless.
LINES = (
    "(WorkerDict pid={pid}) INFO 11-30 {time} [model_runner_v1.py:{n}] Replaying aclgraph for batch size {n}",
    "(TaskRunner pid=4711)               'gpu_memory_utilization': 0.{n},",
    "(WorkerDict pid={pid}) /site-packages/megatron/core/tensor_parallel/layers.py:{n}: UserWarning: {n} are reused",
    "Training Progress:  {n}%|████      | {n}/900 [{time}<{time}, 61.32s/it]",
    "(WorkerDict pid={pid}) INFO 11-30 {time} [loggers.py:123] Engine 000: Avg prompt throughput: {n}.0 tokens/s, "
    "Running: {n} reqs, Waiting: 0 reqs, GPU KV cache usage: 4{n}.1%, Prefix cache hit rate: 0.0%",
    "(WorkerDict pid={pid}) Get a block from the existing pool failed. Try to free cached blocks and reallocate.",
    "(raylet) ModuleNotFoundError: No module named 'acl' [repeated {n}x across cluster]",
    "(WorkerDict pid={pid}) Failed to import from vllm._C with ModuleNotFoundError: {n}; the error can be ignored",
)
STEP = (
    "(TaskRunner pid=4711) step:{n} - global_seqlen/min:1{n} - actor/entropy:0.41{n} - actor/pg_loss:0.0{n} - "
    "actor/grad_norm:0.{n} - critic/score/mean:0.4{n} - critic/score/max:1.0 - critic/score/min:0.0 - "
    "critic/advantages/max:1.2 - critic/advantages/min:-1.2 - response_length/clip_ratio:0.0{n} - timing_s/step:6{n}.5"
)
LAST = "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)\n"
EVERY = 500  # lines a step


def write(path: Path, size: int) -> None:
    """Writes a log of about `size` bytes that ends with an error."""
    part = "".join(_lines()).encode()
    with path.open("wb") as file:
        for _ in range(max(1, size // len(part))):
            file.write(part)
        file.write(LAST.encode())


def count_with_grep(path: Path) -> int:
    """The number of lines with a signature, as grep counts them. Raises CalledProcessError where grep fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".patterns") as file:
        file.write("\n".join(_extended(signature.line) for signature, _ in problems.signatures()))
        file.flush()
        command = ["grep", "-cE", "-f", file.name, str(path)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _lines() -> Iterator[str]:
    for number in range(20 * EVERY):
        values = {
            "pid": 4711 + number % 16,
            "n": number % 90 + 10,
            "time": f"12:{number // 60 % 60:02}:{number % 60:02}",
        }
        yield LINES[number % len(LINES)].format(**values) + "\n"
        if number % EVERY == 0:
            yield STEP.format(n=number // EVERY + 1) + "\n"


def _extended(pattern: str) -> str:
    """A signature as a POSIX extended regular expression of GNU grep."""
    inside = re.sub(r"\[([^]]*)\\d([^]]*)\]", r"[\g<1>0-9\2]", pattern)
    return inside.replace(r"\d", "[0-9]").replace(r"\S", "[^[:space:]]").replace("(?=", "(").replace(r"\'", "'")
