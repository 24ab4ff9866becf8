"""Rows of `invoke bench` for patches: what they replace against what they put there, in one process, by turns.

Each function gives rows (name, measured, target, whether it is met). A ratio is the median of the rounds' ratios; for
times of a few milliseconds the machine has to be idle.
"""

import importlib.metadata
import importlib.util
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

from patches import engine
from patches.patch import Edits, Patch
from patches.places import Place, place

Row = tuple[str, str, str, bool]

DOUBLED = (640, 1280, 2560)  # shards
TOKENS = 32768
SEQUENCES = {1: 1.05, 16: 0.40, 64: 0.25, 256: 0.12}  # greatest share of the loop's time, by number of sequences


def rows(rounds: int) -> list[Row]:
    return [*shard_validation(rounds), *thd_rope(rounds)]


def thd_rope(rounds: int) -> list[Row]:
    """Rotary embedding of packed sequences, forward and backward, positions made once."""
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings import rope_utils

    from patches.megatron.thd_rope import PATCH

    found = []
    with _patched(PATCH, rope_utils) as patched, _one_rank(parallel_state):
        for heads, dim in ((1, 8), (8, 128)):
            for number, target in SEQUENCES.items():
                call = _rotation(number, heads, dim)
                ratio, seconds, loop = _compare(lambda: call(patched), lambda: call(rope_utils), rounds)  # noqa: B023
                name = f"RoPE of {number} sequences, {heads} × {dim}"
                measured = f"{ratio:.2f} of the loop's ({seconds * 1e3:.1f} ms, loop {loop * 1e3:.1f} ms)"
                launch_bound = heads == 1
                found.append(
                    (name, measured, f"≤ {target}" if launch_bound else "-", not launch_bound or ratio <= target)
                )
    return found


def shard_validation(rounds: int) -> list[Row]:
    """The check of experts' shards: ours, the installed torch's sweep, and the comparison of all pairs of 2.7.1."""
    import torch.distributed._shard.sharding_spec._internals as torchs

    from patches.torch.shard_validation import PATCH

    source = source_271()
    with _patched(PATCH, torchs) as patched:
        (many,) = check_times(patched, [96256], rounds)
        ours, sweep = (check_times(module, [12032], rounds)[0] for module in (patched, torchs))
        grown = [check_times(module, DOUBLED, rounds) for module in (module_of(source), patched)] if source else []
    rows = [
        ("overlap of 96256 shards", f"{many:.2f} s, {many / ours:.1f} times that of 12032", "≤ 1 s", many <= 1),
        ("overlap of 12032 shards", f"{ours:.2f} s, torch {_version()}'s own {sweep:.2f} s", "-", True),
    ]
    if not grown:
        return [*rows, ("overlap, torch 2.7.1's own", "its wheel is not to be had from the package index", "-", True)]
    texts = [", ".join(f"{seconds:.3f}" for seconds in each) + f" s, × {each[-1] / each[0]:.1f}" for each in grown]
    numbers = ", ".join(map(str, DOUBLED))
    return [*rows, (f"overlap of {numbers} shards", f"torch 2.7.1's own {texts[0]}; ours {texts[1]}", "-", True)]


def check_times(module: ModuleType, numbers: Iterable[int], rounds: int) -> list[float]:
    """Seconds of processor time for the check of so many shards, the best of the rounds."""
    found = []
    for number in numbers:
        shards = _experts(module, number)
        found.append(min(_seconds(lambda: _validate(module, shards), time.process_time) for _ in range(rounds)))  # noqa: B023
    return found


@cache
def source_271() -> str | None:
    """The file with the check as torch 2.7.1 has it, from its smallest wheel; None where that is not to be had."""
    with tempfile.TemporaryDirectory() as folder:
        kind = ["--platform", "manylinux_2_28_aarch64", "--python-version", "3.11", "--only-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "--dest", folder]
        if subprocess.run([*command, "torch==2.7.1"], capture_output=True).returncode:
            return None
        (wheel,) = Path(folder).iterdir()
        return zipfile.ZipFile(wheel).read("torch/distributed/_shard/sharding_spec/_internals.py").decode()


def module_of(source: str) -> ModuleType:
    """A module of its own from a file's text."""
    module = ModuleType("_internals_of_another_torch")
    exec(compile(source, module.__name__, "exec"), vars(module))
    return module


def _rotation(number: int, heads: int, dim: int) -> Callable[[ModuleType], None]:
    """Rotates and differentiates `number` sequences of equal lengths, TOKENS together."""
    import torch

    t = torch.randn(TOKENS, heads, dim, dtype=torch.bfloat16, requires_grad=True)
    starts = torch.arange(0, TOKENS + 1, TOKENS // number, dtype=torch.int32)
    freqs, gradient = torch.randn(TOKENS // number, 1, 1, dim), torch.randn_like(t)

    def call(module: ModuleType) -> None:
        torch.autograd.grad(module._apply_rotary_pos_emb_thd(t, starts, freqs), t, gradient)

    return call


def _experts(module: ModuleType, number: int) -> list:
    """Shards of one tensor that holds 128 experts of each layer; from 96 layers' on each is cut into 8 parts."""
    parts = 8 if number > 96 * 128 else 1
    places = itertools.product(range(number // (128 * parts)), range(128), range(parts))
    return [module.ShardMetadata([a, b, c * 384, 0], [1, 1, 384, 4096]) for a, b, c in places]


def _validate(module: ModuleType, shards: list) -> None:
    module.validate_non_overlapping_shards_metadata(shards)


def _compare(ours: Callable, theirs: Callable, rounds: int) -> tuple[float, float, float]:
    """Median of the ratios, and both medians; the first round warms up."""
    pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(rounds + 1)][1:]
    return statistics.median(a / b for a, b in pairs), *(statistics.median(side) for side in zip(*pairs, strict=True))


def _seconds(call: Callable, clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    call()
    return clock() - began


def _version() -> str:
    return importlib.metadata.version("torch").partition("+")[0]


@contextmanager
def _patched(patch: Patch, module: ModuleType) -> Iterator[ModuleType]:
    """A module as the patch makes it, beside the unpatched one; what it adds can be imported meanwhile."""
    name = next(target.module for target in patch.targets if isinstance(target, Edits))
    package = importlib.import_module(name.rpartition(".")[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True)
        path.write_bytes(place(None).module(name).read_bytes())
        engine.apply(engine.judge([patch], Place(Path(folder), Path(folder))))
        package.__path__.append(str(path.parent))
        spec = importlib.util.spec_from_file_location(f"{name}_patched", path)
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        yield made
        package.__path__.remove(str(path.parent))


@contextmanager
def _one_rank(parallel_state: ModuleType) -> Iterator[None]:
    """Megatron's parallel state for a process alone."""
    import torch

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    for row in rows(7):
        print(*row, sep="  |  ", flush=True)
