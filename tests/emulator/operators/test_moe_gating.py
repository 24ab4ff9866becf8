"""Gating against softmax or sigmoid and sorting, row by row."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, assert_close, seeded


def logits(g, tokens, experts, dtype=torch.float32):
    """Without ties, also after rounding to dtype."""
    rows = [torch.randperm(experts, generator=g) for _ in range(tokens)]
    return torch.stack(rows).reshape(tokens, experts).to(dtype) / 4


@pytest.mark.parametrize(("dtype", "k"), itertools.product(FLOATS, (1, 3)))
def test_gating_top_k_softmax(dtype, k):
    x = logits(seeded(dtype, k), 5, 8, dtype)
    weights, experts, numbers = torch_npu.npu_moe_gating_top_k_softmax(x.npu(), None, k)
    assert (weights.dtype, experts.dtype, numbers.dtype) == (dtype, torch.int32, torch.int32)
    shares = torch.exp(x.double()) / torch.exp(x.double()).sum(1, keepdim=True)
    for token, row in enumerate(shares.tolist()):
        best = sorted(range(8), key=lambda e, r=row: -r[e])[:k]
        assert experts[token].tolist() == best
        assert_close(weights[token], shares[token][best])
        assert numbers[token].tolist() == [token + choice * 5 for choice in range(k)]


def test_gating_of_finished_rows_and_of_three_dimensions():
    x = logits(seeded("finished"), 4, 8).reshape(2, 2, 8)
    finished = torch.tensor([[False, True], [False, False]])
    _, experts, numbers = torch_npu.npu_moe_gating_top_k_softmax(x.npu(), finished.npu(), 2)
    assert experts.shape == numbers.shape == (2, 2, 2)
    assert (experts.cpu() == 8).all(-1).tolist() == finished.tolist()


@pytest.mark.parametrize("k", [0, 9])
def test_gating_wants_a_k_among_the_experts(k):
    with pytest.raises(RuntimeError, match=f"k must be between 1 and the number of experts, but is {k}"):
        torch_npu.npu_moe_gating_top_k_softmax(torch.ones(2, 8).npu(), None, k)


@pytest.mark.parametrize(("norm_type", "select_mode"), itertools.product((0, 1), repeat=2))
def test_gating_top_k_in_groups(norm_type, select_mode):
    g = seeded(norm_type, select_mode)
    x, bias = logits(g, 6, 8), torch.rand(8, generator=g)
    weights, experts, scores = torch_npu.npu_moe_gating_top_k(
        x.npu(),
        3,
        bias=bias.npu(),
        k_group=2,
        group_count=4,
        group_select_mode=select_mode,
        norm_type=norm_type,
        out_flag=True,
        routed_scaling_factor=2.5,
    )
    for token in range(6):
        e = torch.exp(x[token].double())
        score = (e / (1 + e) if norm_type else e / e.sum()).tolist()
        biased = [s + b for s, b in zip(score, bias.tolist(), strict=True)]
        groups = [biased[i : i + 2] for i in range(0, 8, 2)]
        worth = [max(pair) if select_mode == 0 else sum(pair) for pair in groups]
        good = sorted(range(4), key=lambda i, w=worth: -w[i])[:2]
        best = sorted((i for i in range(8) if i // 2 in good), key=lambda i, b=biased: -b[i])[:3]
        total = sum(score[i] for i in best) if norm_type else 1
        assert experts[token].tolist() == best
        assert_close(weights[token], torch.tensor([2.5 * score[i] / total for i in best], dtype=torch.float64))
        assert_close(scores[token], torch.tensor(score, dtype=torch.float64))
