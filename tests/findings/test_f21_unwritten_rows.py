"""F21: expert parallelism by all-gather multiplies a row that nobody wrote by 0: NaN, if it held NaN.

Seen with poisoned memory only (NPU_EMULATOR_POISON): whether a device leaves NaN there is not known.
"""

STACKS = ("installed", "performance")


def combined(experts):
    """Whether each token's sum is finite on rank 0, which has experts 0 to 3 of 8; `experts` [tokens, 2] are chosen."""
    from types import SimpleNamespace

    import torch
    from vllm_ascend.ops.moe import token_dispatcher

    token_dispatcher.get_ep_group = lambda: SimpleNamespace(rank_in_group=0, world_size=2)
    dispatcher = token_dispatcher.TokenDispatcherWithAllGather(top_k=2, num_experts=8, num_local_experts=4)
    chosen = torch.tensor(experts, dtype=torch.int32).npu()
    here = torch.tensor([0, 1, 2, 3, -1, -1, -1, -1]).npu()
    rows = torch.ones(len(chosen), 16, device="npu")
    sorted_rows = dispatcher.token_dispatch(rows, torch.ones_like(chosen, dtype=torch.float32), chosen, here)
    return dispatcher.token_combine(sorted_rows["hidden_states"]).isfinite().all(1).tolist()


def test_fewer_than_two_rows_give_nan(on):
    assert on(combined, [[4, 5]], NPU_EMULATOR_POISON="fresh") == [False]
    assert on(combined, [[0, 5]], NPU_EMULATOR_POISON="fresh") == [False]


def test_two_rows_or_clean_memory_do_not(on):
    assert on(combined, [[0, 1], [4, 5]], NPU_EMULATOR_POISON="fresh") == [True, True]
    assert on(combined, [[4, 5]]) == [True]
