"""The operators of vllm-ascend's compiled module: rotation index by index, masked ids looked up one by one."""

import itertools

import pytest
import torch
import vllm_ascend_C  # noqa: F401

from tests.emulator.operators.comparison import FLOATS, assert_close, on_npu, random, seeded
from tests.emulator.operators.test_rotary import by_formula

ops = torch.ops._C_ascend
HEAD, ROTATED, POSITIONS = 8, 6, 16


@pytest.mark.parametrize(("dtype", "is_neox"), itertools.product(FLOATS, (True, False)))
def test_rotary_embedding_turns_the_first_part_of_every_head(dtype, is_neox):
    """cos_sin_cache holds cosines and sines in the type of the operator, already rounded."""
    g = seeded(dtype, is_neox)
    positions = torch.tensor([3, 0, 15])
    query, key = (random(g, 3, heads * HEAD, dtype=dtype, grad=False) for heads in (4, 2))
    cos, sin = (random(g, POSITIONS, ROTATED // 2, dtype=dtype, grad=False) for _ in range(2))
    moved = [on_npu(t, dtype) for t in (query, key, torch.cat((cos, sin), -1))]
    results = ops.rotary_embedding(positions.npu(), moved[0], moved[1], HEAD, moved[2], is_neox)
    cos, sin = (per_column(t[positions].unsqueeze(1), is_neox) for t in (cos, sin))
    for given, result in zip((query, key), results, strict=True):
        heads = given.unflatten(-1, (-1, HEAD))
        rotated = by_formula(heads[..., :ROTATED], cos, sin, not is_neox)
        assert result.dtype == dtype
        # float16 is rounded at every step, in products as large as the result is small
        accumulated = 2e-3 if dtype == torch.float16 else 1e-5
        assert_close(result, torch.cat((rotated, heads[..., ROTATED:]), -1), accumulated=accumulated)


def per_column(values, is_neox):
    """One value a pair -> one a column."""
    return torch.cat((values, values), -1) if is_neox else values.repeat_interleave(2, -1)


def test_rotary_embedding_leaves_its_arguments_alone():
    query, key, cache = torch.ones(1, 2 * HEAD).npu(), torch.ones(1, HEAD).npu(), torch.ones(1, ROTATED).npu()
    ops.rotary_embedding(torch.zeros(1, dtype=torch.int64).npu(), query, key, HEAD, cache, True)
    assert query.eq(1).all() and key.eq(1).all()


def row_of(token, original, padding, added):
    """Row of the token in this rank's table: original words, padding, added words; None where it is another rank's."""
    if token in original:
        return token - original.start
    if token in added:
        return len(original) + padding + token - added.start
    return None


@pytest.mark.parametrize(("padding", "dtype"), [(0, torch.int32), (3, torch.int64)])
def test_masked_input_and_mask(padding, dtype):
    original, added = range(8, 16), range(32, 36)
    tokens = torch.arange(40, dtype=dtype).reshape(4, 10)
    bounds = (original.start, original.stop, padding, added.start, added.stop)
    rows, foreign = ops.get_masked_input_and_mask(tokens.npu(), *bounds)
    assert rows.dtype == dtype and foreign.dtype == torch.bool
    expected = [row_of(token, original, padding, added) for token in range(40)]
    assert foreign.flatten().tolist() == [row is None for row in expected]
    assert rows.flatten().tolist() == [row or 0 for row in expected]


def test_weak_reference_is_the_same_memory():
    x = torch.zeros(3).npu()
    reference = ops.weak_ref_tensor(x)
    x.fill_(2)
    assert reference.tolist() == [2, 2, 2]
    assert reference.data_ptr() == x.data_ptr()
