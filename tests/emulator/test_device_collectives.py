"""The process group "hccl": every collective gives on npu tensors what gloo gives on CPU tensors; two processes."""

import json
from pathlib import Path

import pytest

from tests.emulator import processes

RANKS = Path(__file__).with_name("collectives_ranks.py")


@pytest.fixture(scope="module")
def outcomes():
    """One outcome ("" or what went wrong) per case, of all ranks. One pair of processes runs all cases."""
    finished = processes.run_ranks(RANKS, 2)
    reports = [json.loads(process.stdout.splitlines()[-1]) for process in finished]
    assert list(reports[0]) == list(reports[1])
    return {case: [report[case] for report in reports] for case in reports[0]}


CASES = [
    "all_reduce", "all_reduce, bfloat16 maximum", "all_reduce, average", "all_reduce, truth values",
    "all_reduce, integers", "all_reduce of a view", "all_reduce, asynchronous average", "all_reduce_coalesced",
    "broadcast", "reduce", "reduce, average", "all_gather", "all_gather of no dimensions",
    "all_gather, uneven", "all_gather, uneven and empty",
    "all_gather_into_tensor",
    "all_gather_into_tensor, coalesced", "gather", "scatter", "reduce_scatter", "reduce_scatter, uneven",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor, average", "all_to_all_single", "all_to_all_single, uneven", "all_to_all", "send and recv",
    "batch_isend_irecv", "barrier", "functional", "all_gather_object", "broadcast_object_list", "subgroup",
    "a gloo group beside it", "device mesh", "ddp", "fsdp2", "a cpu tensor", "cpu and npu tensors",
    "barrier lands copies",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_collective(outcomes, case):
    assert outcomes[case] == ["", ""]


def test_every_case_of_the_ranks_is_listed(outcomes):
    assert set(outcomes) == set(CASES)
