"""npu_ring_attention_update: attention over all keys, put together from attention over parts of them."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import ACCUMULATED, FLOATS, ROUNDING, assert_close, seeded

update = torch.ops.mindspeed_extension.npu_ring_attention_update


@pytest.mark.parametrize("dtype", FLOATS)
def test_three_parts_make_the_whole(dtype):
    g = seeded(dtype)
    query, key, value = (torch.randn(s, 2, 16, generator=g).to(dtype).npu() for s in (5, 9, 9))

    def over(keys):
        return torch_npu.npu_fusion_attention(query, key[keys], value[keys], 2, "SBH", scale=0.5)[:3]

    whole = over(slice(None))
    state = over(slice(0, 2))
    for keys in (slice(2, 3), slice(3, 9)):
        state = update(*state, *over(keys))
    for got, want in zip(state, whole, strict=True):
        assert got.dtype == want.dtype
        # every part's result was rounded before it was added
        assert_close(got, want.cpu().double(), roundings=4, accumulated=max(ACCUMULATED, 4 * ROUNDING[dtype]))


def test_packed_sequences_with_their_blocks():
    g = seeded("packed")
    ends, key_ends = [2, 5, 6], [[3, 5, 9], [1, 2, 6]]
    query = torch.randn(6, 4, 8, generator=g).npu()
    keys = [torch.randn(2, e[-1], 2, 8, generator=g).npu() for e in key_ends]

    def over(part, lengths):
        return torch_npu.npu_fusion_attention(
            query, *part, 4, "TND", scale=0.5, actual_seq_qlen=ends, actual_seq_kvlen=lengths
        )[:3]

    # the whole: each sequence's keys of both parts behind one another
    pieces = [
        part[:, a:b]
        for spans in zip(*(itertools.pairwise([0, *e]) for e in key_ends), strict=True)
        for part, (a, b) in zip(keys, spans, strict=True)
    ]
    whole = over(torch.cat(pieces, 1), [a + b for a, b in zip(*key_ends, strict=True)])
    joined = update(*over(keys[0], key_ends[0]), *over(keys[1], key_ends[1]), torch.tensor([0, *ends]).npu(), "TND")
    for got, want in zip(joined, whole, strict=True):
        assert_close(got, want.cpu().double())


def test_wrong_arguments_are_named():
    x = torch.ones(2, 1, 8).npu()
    statistics = torch.ones(1, 2, 2, 8).npu()
    with pytest.raises(RuntimeError, match="layout must be one of SBH, TND, but is BSH"):
        update(x, statistics, statistics, x, statistics, statistics, None, "BSH")
    with pytest.raises(RuntimeError, match="layout TND needs actual_seq_qlen in int64, found None"):
        update(x, statistics, statistics, x, statistics, statistics, None, "TND")
