"""LoRA's operators against one product for every token: one adapter a token, or one a sequence."""

import pytest
import torch
import vllm_ascend_C  # noqa: F401

from tests.emulator.operators.comparison import FLOATS, assert_close, on_npu, random, seeded

ops = torch.ops._C_ascend
TOKENS, HIDDEN, RANK, ADAPTERS = 5, 12, 4, 3
BY_TOKEN = [2, -1, 0, 2, 2]
BY_SEQUENCE, LENGTHS = [2, -1, 0], [2, 1, 1]  # the last token belongs to no sequence
EXPANDED = [2, 2, -1, 0, -1]


def adapters_of(operator):
    """Arguments that say which adapter is used, and the adapter of every token."""
    if operator.startswith("bgmv"):
        return [torch.tensor(BY_TOKEN).npu()], BY_TOKEN
    return [torch.tensor(BY_SEQUENCE).npu(), torch.tensor(LENGTHS).npu()], EXPANDED


@pytest.mark.parametrize("operator", ["bgmv_shrink", "sgmv_shrink"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_shrink_writes_the_rows_that_have_an_adapter(operator, dtype):
    g = seeded(operator, dtype)
    x = random(g, TOKENS, HIDDEN, dtype=dtype, grad=False)
    weight = random(g, ADAPTERS, 1, RANK, HIDDEN, dtype=dtype, grad=False)
    before = random(g, TOKENS, RANK, grad=False)
    y, (which, by_token) = on_npu(before, torch.float32), adapters_of(operator)
    getattr(ops, operator)(on_npu(x, dtype), on_npu(weight, dtype), *which, y, 0.5)
    rows = [before[t] if a < 0 else 0.5 * weight[a, 0] @ x[t] for t, a in enumerate(by_token)]
    assert_close(y, torch.stack(rows))


@pytest.mark.parametrize("operator", ["bgmv_expand", "sgmv_expand"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_expand_adds_to_a_slice_of_columns(operator, dtype):
    g = seeded(operator, dtype)
    x = random(g, TOKENS, RANK, grad=False)
    weight = random(g, ADAPTERS, HIDDEN, RANK, dtype=dtype, grad=False)
    before = random(g, TOKENS, 2 * HIDDEN, dtype=dtype, grad=False)
    y, (which, by_token) = on_npu(before, dtype), adapters_of(operator)
    result = getattr(ops, operator)(on_npu(x, torch.float32), on_npu(weight, dtype), *which, y, 3, HIDDEN)
    assert result.data_ptr() == y.data_ptr()
    expected = before.clone()
    for token, adapter in enumerate(by_token):
        if adapter >= 0:
            expected[token, 3 : 3 + HIDDEN] += weight[adapter] @ x[token]
    assert_close(y, expected)
