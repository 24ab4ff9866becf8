"""Routing of a rank's tokens to its experts against loops over tokens and experts."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, assert_close, choices, on_npu, random, seeded


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


def columns(tokens, k):
    """Numbers of (token, choice) column by column."""
    return torch.arange(tokens * k, dtype=torch.int32).reshape(k, tokens).t().contiguous()


@pytest.mark.parametrize(("dtype", "k", "active"), itertools.product(FLOATS, (1, 3), (2, 5, 99)))
def test_init_routing_column_by_column(dtype, k, active):
    g = seeded(dtype, k)
    x, idx = random(g, 5, 4, dtype=dtype, grad=False), choices(g, 5, 6, k)
    rows, where, experts = torch_npu.npu_moe_init_routing(
        on_npu(x, dtype), row_idx=columns(5, k).npu(), expert_idx=idx.int().npu(), active_num=active
    )
    tokens, want_where = routed(idx, 0, 6)
    kept = min(5, active) * k
    assert rows.dtype == dtype and torch.equal(rows.cpu().double(), x[tokens[:kept]])
    assert (where.dtype, experts.dtype) == (torch.int32, torch.int32)
    assert experts.tolist() == sorted(idx.flatten().tolist())
    assert where.tolist() == want_where.reshape(5, k).t().flatten().tolist()


def test_ends_of_the_experts_groups():
    experts = torch.tensor([0, 0, 2, 2, 2, 5], dtype=torch.int32).npu()
    ends = torch_npu.npu_moe_compute_expert_tokens(experts, 7)
    assert ends.dtype == torch.int32 and ends.tolist() == [2, 2, 5, 5, 5, 6, 6]


@pytest.mark.parametrize(("dtype", "k", "extras"), itertools.product(FLOATS, (1, 3), (False, True)))
def test_finalize_routing(dtype, k, extras):
    """extras: two skips, a bias and a (token, choice) without a row."""
    g = seeded(dtype, k, extras)
    rows, scales = random(g, 5 * k, 4, dtype=dtype, grad=False), random(g, 5, k, dtype=dtype, grad=False)
    skips = [random(g, 5, 4, dtype=dtype, grad=False) if extras else None for _ in range(2)]
    bias = random(g, 6, 4, dtype=dtype, grad=False) if extras else None
    where, idx = torch.randperm(5 * k, generator=g).int(), choices(g, 5, 6, k)
    if extras:
        where[3] = -1
    found = torch_npu.npu_moe_finalize_routing(
        *(on_npu(t, dtype) for t in (rows, *skips, bias, scales)), where.npu(), idx.int().npu()
    )
    want = sum((s for s in skips if s is not None), torch.zeros(5, 4, dtype=torch.float64))
    for token, choice in itertools.product(range(5), range(k)):
        row = int(where[token + choice * 5])
        part = rows[row] if row >= 0 else torch.zeros(4, dtype=torch.float64)
        part = part if bias is None else part + bias[idx[token, choice]]
        want[token] += scales[token, choice] * part
    assert found.dtype == dtype
    assert_close(found, want)


def test_routing_column_by_column_and_back():
    """With equal weights that add up to 1 every token comes back as it was."""
    g = seeded("back")
    x, idx = torch.randn(6, 4, generator=g), choices(g, 6, 5, 2).int().npu()
    rows, where, _ = torch_npu.npu_moe_init_routing(x.npu(), columns(6, 2).npu(), idx, 6)
    again = torch_npu.npu_moe_finalize_routing(rows, None, None, None, torch.full((6, 2), 0.5).npu(), where, idx)
    torch.testing.assert_close(again.cpu(), x)


def test_wrong_arguments_of_the_first_routing_are_named():
    x, idx = torch.ones(3, 4).npu(), torch.zeros(3, 2, dtype=torch.int32).npu()
    with pytest.raises(RuntimeError, match=r"row_idx and expert_idx must be \[3, k\], but are \(3, 1\) and \(3, 2\)"):
        torch_npu.npu_moe_init_routing(x, idx[:, :1], idx, 3)
    with pytest.raises(NotImplementedError, match="implements drop_pad_mode 0, not 1"):
        torch_npu.npu_moe_finalize_routing(x, None, None, None, None, idx[:, 0], None, 1)
    with pytest.raises(RuntimeError, match="bias needs export_for_source_row, but it is None"):
        torch_npu.npu_moe_finalize_routing(x, None, None, x, None, idx[:, 0], None)
