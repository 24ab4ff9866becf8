"""npu_top_k_top_p against choosing words one by one."""

import math

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, seeded


def kept(row: list[float], p: float | None, k: int | None) -> set[int]:
    """The k likeliest words, of those the shortest run from the likeliest on whose probability reaches p."""
    order = sorted(range(len(row)), key=lambda i: -row[i])[:k]
    weights = [math.exp(row[i] - row[order[0]]) for i in order]
    chosen, so_far = set(), 0.0
    for word, weight in zip(order, weights, strict=True):
        if p is not None and so_far >= p * sum(weights) and chosen:
            break
        chosen.add(word)
        so_far += weight
    return chosen


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("with_p", "with_k"), [(True, True), (True, False), (False, True), (False, False)])
def test_random_rows(dtype, with_p, with_k):
    g = seeded(dtype, with_p, with_k)
    logits = torch.stack([torch.randperm(12, generator=g) for _ in range(40)]).to(dtype) / 2  # no ties
    p = torch.rand(40, generator=g) * 0.98 + 0.01
    k = torch.randint(1, 13, (40,), generator=g, dtype=torch.int32)
    given = [p.to(dtype).npu() if with_p else None, k.npu() if with_k else None]
    found = torch_npu.npu_top_k_top_p(logits.npu(), *given).cpu()
    assert found.dtype == dtype
    for row in range(40):
        words = kept(logits[row].tolist(), float(p[row].to(dtype)) if with_p else None, int(k[row]) if with_k else None)
        assert set(found[row].isfinite().nonzero().flatten().tolist()) == words
        assert torch.equal(found[row][list(words)], logits[row][list(words)])


def test_the_likeliest_word_always_stays():
    found = torch_npu.npu_top_k_top_p(torch.tensor([[0.0, 5.0, 1.0]]).npu(), torch.tensor([0.0]).npu(), None)
    assert found.isfinite().tolist() == [[False, True, False]]


def test_limits_are_one_a_row():
    with pytest.raises(RuntimeError, match=r"k must have one value a row, \[2\], but has shape \(1,\)"):
        torch_npu.npu_top_k_top_p(torch.ones(2, 3).npu(), None, torch.ones(1, dtype=torch.int32).npu())
