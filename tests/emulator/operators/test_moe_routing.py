"""Gating, routing and permutation of tokens against loops over tokens and experts."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, ROUNDING, assert_close, compare, on_npu, random, seeded


def logits(g, tokens, experts, dtype=torch.float32):
    """Without ties, also after rounding to dtype."""
    rows = [torch.randperm(experts, generator=g) for _ in range(tokens)]
    return torch.stack(rows).reshape(tokens, experts).to(dtype) / 4


def choices(g, tokens, experts, k):
    """k different experts for every token."""
    return torch.stack([torch.randperm(experts, generator=g)[:k] for _ in range(tokens)]).reshape(tokens, k)


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


def routed(idx, low, high):
    """Token of every row and row of every (token, choice), by expert and then by token."""
    tokens, where = [], torch.full_like(idx, -1)
    for expert in range(low, high):
        for token, choice in itertools.product(*map(range, idx.shape)):
            if idx[token, choice] == expert:
                where[token, choice] = len(tokens)
                tokens.append(token)
    return tokens, where.flatten()


@pytest.mark.parametrize(
    ("dtype", "active", "num_type", "seed"), itertools.product(FLOATS, ((0, 8), (2, 5), (7, 8)), (0, 1), (0, 1))
)
def test_init_routing(dtype, active, num_type, seed):
    g = seeded(dtype, active, seed)
    x, idx = random(g, 5, 4, dtype=dtype, grad=False), choices(g, 5, 8, 3)
    rows, where, counts, _ = torch_npu.npu_moe_init_routing_v2(
        on_npu(x, dtype),
        idx.int().npu(),
        active_num=15,
        expert_num=8,
        expert_tokens_num_type=num_type,
        expert_tokens_num_flag=True,
        active_expert_range=list(active),
        quant_mode=-1,
    )
    tokens, want_where = routed(idx, *active)
    assert rows.shape == (15, 4) and rows.dtype == dtype
    assert torch.equal(rows[: len(tokens)].cpu().double(), x[tokens])
    assert where.dtype == torch.int32 and where.tolist() == want_where.tolist()
    sizes = [int((idx == e).sum()) for e in range(*active)]
    assert counts.dtype == torch.int64
    assert counts.tolist() == (sizes if num_type else list(itertools.accumulate(sizes)))


def test_init_routing_tells_where_rows_come_from():
    idx = choices(seeded("from"), 4, 6, 2)
    _, origin, *_ = torch_npu.npu_moe_init_routing_v2(
        torch.arange(4.0)[:, None].npu(),
        idx.npu(),
        expert_num=6,
        active_expert_range=[0, 3],
        quant_mode=-1,
        row_idx_type=1,
    )
    _, where = routed(idx, 0, 3)
    for row, pair in enumerate(origin.tolist()):
        assert pair == -1 if row >= (where >= 0).sum() else where[pair] == row


@pytest.mark.parametrize(("poison", "is_nan"), [("off", False), ("fresh", True)])
def test_rows_of_foreign_experts_are_not_written(monkeypatch, poison, is_nan):
    """And a weight of 0 does not hide a NaN: npu_moe_token_unpermute reads row 1 for -1."""
    monkeypatch.setenv("NPU_EMULATOR_POISON", poison)
    rows, where, *_ = torch_npu.npu_moe_init_routing_v2(
        torch.ones(2, 4).npu(),
        torch.tensor([[0], [5]]).npu(),
        expert_num=8,
        active_expert_range=[0, 4],
        quant_mode=-1,
    )
    assert where.tolist() == [0, -1]
    assert rows[1].isnan().all() == is_nan
    joined = torch_npu.npu_moe_token_unpermute(rows, where.abs(), torch.tensor([[1.0], [0.0]]).npu())
    assert joined[1].isnan().all() == is_nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 2, 4)}, "the x shape support only 2d"),
        ({"expert_idx": torch.zeros(3, 1, dtype=torch.int32)}, r"expert_idx must be \[2, k\]"),
        ({"active_expert_range": [4, 4]}, r"active_expert_range must be \[low, high\)"),
        ({"active_expert_range": [0, 10241]}, r"within \[0, 10240\]"),
        ({"quant_mode": 1}, r"quant_mode -1 \(none\) without scale and offset, not 1"),
        ({"drop_pad_mode": 1}, "drop_pad_mode 0"),
        ({"active_num": 1}, "an active_num that drops no token, not 1"),
    ],
)
def test_wrong_arguments_of_init_routing_are_named(change, message):
    call = {
        "x": torch.ones(2, 4),
        "expert_idx": torch.zeros(2, 1, dtype=torch.int32),
        "expert_num": 4,
        "active_expert_range": [0, 4],
        "quant_mode": -1,
    } | change
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_moe_init_routing_v2(call.pop("x").npu(), call.pop("expert_idx").npu(), **call)


def permuted(tokens, idx, count):
    """Rows by expert, then by (token, choice)."""
    idx = idx.reshape(len(tokens), -1)
    pairs = sorted(itertools.product(*map(range, idx.shape)), key=lambda p: (int(idx[p]), p))
    return torch.stack([tokens[token] for token, _ in pairs][:count]), pairs


@pytest.mark.parametrize(("dtype", "k", "dropped"), itertools.product(FLOATS, (0, 2), (0, 3)))
def test_token_permute_and_its_gradient(dtype, k, dropped):
    """k 0: one expert a token, as a vector."""
    g = seeded(dtype, k, dropped)
    tokens = random(g, 5, 4, dtype=dtype)
    idx = choices(g, 5, 6, k) if k else choices(g, 5, 6, 1).flatten()
    count = idx.numel() - dropped
    compare(torch_npu.npu_moe_token_permute, lambda t, i, c: permuted(t, i, c)[0], [tokens, idx, count], dtype)
    _, where = torch_npu.npu_moe_token_permute(on_npu(tokens, dtype), idx.npu(), -dropped if dropped else None)
    assert where.dtype == torch.int32
    _, pairs = permuted(tokens, idx, count)
    assert [pairs[row] for row in where.tolist()] == sorted(pairs)


def unpermuted(rows, where, probs):
    k = 1 if probs is None else probs.shape[1]
    results = []
    for token in range(len(where) // k):
        parts = [(where[token * k + c], 1 if probs is None else probs[token, c]) for c in range(k)]
        results.append(sum((rows[r] * p for r, p in parts if r < len(rows)), torch.zeros_like(rows[0])))
    return torch.stack(results)


@pytest.mark.parametrize(("dtype", "k", "dropped"), itertools.product(FLOATS, (0, 2), (0, 3)))
def test_token_unpermute_and_its_gradients(dtype, k, dropped):
    g = seeded(dtype, k, dropped)
    pairs = 5 * max(k, 1)
    rows = random(g, pairs - dropped, 4, dtype=dtype)
    probs = random(g, 5, k, dtype=dtype) if k else None
    where = torch.randperm(pairs, generator=g).int()
    compare(torch_npu.npu_moe_token_unpermute, unpermuted, [rows, where, probs], dtype, accumulated=1e-6)


def test_unpermute_undoes_permute():
    g = seeded("undo")
    tokens, idx = torch.randn(6, 4, generator=g), choices(g, 6, 5, 3)
    rows, where = torch_npu.npu_moe_token_permute(tokens.npu(), idx.npu())
    again = torch_npu.npu_moe_token_unpermute(rows, where, torch.full((6, 3), 1 / 3).npu())
    torch.testing.assert_close(again.cpu(), tokens)


def routing_map(g, tokens, experts, k):
    return torch.zeros(tokens, experts, dtype=torch.bool).scatter_(1, choices(g, tokens, experts, k), True)


def by_map(tokens, routing, probs):
    """Rows and probabilities, expert by expert."""
    pairs = [(t, e) for e in range(routing.shape[1]) for t in range(len(tokens)) if routing[t, e]]
    return torch.stack([tokens[t] for t, _ in pairs]), torch.stack([probs[p] for p in pairs]), pairs


@pytest.mark.parametrize(("dtype", "k", "as_int8"), itertools.product(FLOATS, (1, 3), (False, True)))
def test_permute_with_routing_map_and_its_gradients(dtype, k, as_int8):
    g = seeded(dtype, k)
    tokens, probs, routing = random(g, 5, 4, dtype=dtype), random(g, 5, 6, dtype=dtype), routing_map(g, 5, 6, k)
    given = (routing.to(torch.int8) if as_int8 else routing).npu()
    mine = [on_npu(t, dtype) for t in (tokens, probs)]
    rows, chances, where = torch_npu.npu_moe_token_permute_with_routing_map(
        mine[0], given, probs=mine[1], num_out_tokens=5 * k
    )
    want_rows, want_chances, pairs = by_map(tokens, routing, probs)
    assert_close(rows, want_rows)
    assert_close(chances, want_chances)
    assert where.dtype == torch.int32 and not where.requires_grad
    assert [pairs[row] for row in where.tolist()] == sorted(pairs)
    grads = random(g, 5 * k, 4, dtype=dtype, grad=False), random(g, 5 * k, dtype=dtype, grad=False)
    got = torch.autograd.grad((rows, chances), mine, [on_npu(t, dtype) for t in grads])
    want = torch.autograd.grad((want_rows, want_chances), (tokens, probs), grads)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


def test_permute_with_routing_map_without_probs():
    g = seeded("without")
    tokens, routing = random(g, 4, 3), routing_map(g, 4, 5, 2)
    mine = on_npu(tokens, torch.float32)
    rows, chances, _ = torch_npu.npu_moe_token_permute_with_routing_map(mine, routing.npu(), num_out_tokens=8)
    assert chances is None
    (grad,) = torch.autograd.grad(rows.sum(), mine)
    assert (grad == 2).all()


@pytest.mark.parametrize(("dtype", "k", "with_probs"), itertools.product(FLOATS, (1, 3), (False, True)))
def test_unpermute_with_routing_map_and_its_gradients(dtype, k, with_probs):
    g = seeded(dtype, k, with_probs)
    rows, routing = random(g, 5 * k, 4, dtype=dtype), routing_map(g, 5, 6, k)
    probs = random(g, 5, 6, dtype=dtype) if with_probs else None
    _, _, where = torch_npu.npu_moe_token_permute_with_routing_map(
        torch.zeros(5, 4).npu(), routing.npu(), num_out_tokens=5 * k
    )

    def formula(rows, probs):
        _, _, pairs = by_map(torch.zeros(5, 1), routing, torch.zeros(5, 6))
        result = [torch.zeros(4, dtype=torch.float64) for _ in range(5)]
        for row, (token, expert) in zip(rows, pairs, strict=True):
            result[token] = result[token] + row * (1 if probs is None else probs[token, expert])
        return torch.stack(result)

    for function in (
        torch_npu.npu_moe_token_unpermute_with_routing_map,
        torch_npu._npu_moe_token_unpermute_with_routing_map,
    ):
        compare(
            lambda rows, probs, f=function: f(rows, where, [5, 4], probs=probs, routing_map=routing.npu()),
            formula,
            [rows, probs],
            dtype,
            accumulated=1e-5 if dtype == torch.float32 else ROUNDING[dtype],
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_out_tokens": 3}, r"must have num_out_tokens / tokens = 3 / 2 entries, but they have \[2\]"),
        ({"probs": torch.ones(2, 3, dtype=torch.bfloat16)}, r"probs must have the type of tokens, torch\.float32"),
        ({"drop_and_pad": True}, "does not implement padded or dropped tokens"),
    ],
)
def test_wrong_arguments_of_permute_with_routing_map_are_named(change, message):
    call = {"probs": torch.ones(2, 3), "num_out_tokens": 4} | change
    call = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    routing = torch.tensor([[True, True, False], [False, True, True]]).npu()
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_moe_token_permute_with_routing_map(torch.ones(2, 4).npu(), routing, **call)
