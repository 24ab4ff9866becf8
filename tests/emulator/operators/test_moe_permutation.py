"""Permutation of tokens and its inverse against loops over tokens and experts, gradients included."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, ROUNDING, assert_close, choices, compare, on_npu, random, seeded


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


def test_chosen_probabilities_come_token_by_token():
    g = seeded("chosen")
    routing, probs = routing_map(g, 4, 5, 2), torch.rand(4, 5, generator=g)
    rows, _, where = torch_npu.npu_moe_token_permute_with_routing_map(
        torch.ones(4, 3).npu(), routing.npu(), num_out_tokens=8
    )
    *_, chosen = torch_npu._npu_moe_token_unpermute_with_routing_map(
        rows, where, [4, 3], probs=probs.npu(), routing_map=routing.npu()
    )
    assert chosen.tolist() == [float(probs[t, e]) for t in range(4) for e in range(5) if routing[t, e]]


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
