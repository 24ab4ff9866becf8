"""Grouped products against one sum per element."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, assert_close, on_npu, random, seeded

ops = torch.ops.mindspeed_extension
SIZES = ([2, 0, 3], [5, 0, 0], [1, 1, 1], [0, 0, 0])


def listed(sizes, kind):
    """A group_list on the npu: ends (0) or sizes (1)."""
    return torch.tensor(list(itertools.accumulate(sizes)) if kind == 0 else sizes, dtype=torch.int64).npu()


def spans(sizes):
    return list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


def by_rows(x, weights, sizes):
    """[M, K] x G x [K, N]: rows of each group times its weight, summed over k by einsum."""
    return torch.cat([torch.einsum("mk,kn->mn", x[a:b], w) for (a, b), w in zip(spans(sizes), weights, strict=True)])


def by_inner(x, y, sizes):
    """[M, K] x [K, N] -> [G, M, N]."""
    return torch.stack([torch.einsum("mk,kn->mn", x[:, a:b], y[a:b]) for a, b in spans(sizes)])


@pytest.mark.parametrize(("dtype", "sizes", "kind"), itertools.product(FLOATS, SIZES, (0, 1)))
def test_rows_by_group(dtype, sizes, kind):
    """As vllm-ascend (one weight [G, K, N]) and as MindSpeed (G weights [K, N]) call it."""
    g = seeded(dtype, sizes)
    x, weight = random(g, sum(sizes), 16, dtype=dtype, grad=False), random(g, 3, 16, 6, dtype=dtype, grad=False)
    expected = by_rows(x, weight, sizes)
    one = on_npu(weight, dtype)
    several = [on_npu(w.t().contiguous(), dtype).t() for w in weight]
    for weights in ([one], several):
        (y,) = torch_npu.npu_grouped_matmul(
            [on_npu(x, dtype)],
            weights,
            split_item=2,
            group_type=0,
            group_list=listed(sizes, kind),
            group_list_type=kind,
        )
        assert y.dtype == dtype
        assert_close(y, expected)


@pytest.mark.parametrize(("dtype", "sizes", "kind"), itertools.product(FLOATS, SIZES, (0, 1)))
def test_inner_dimension_by_group(dtype, sizes, kind):
    g = seeded(dtype, sizes)
    x, y = (random(g, sum(sizes), n, dtype=dtype, grad=False) for n in (4, 6))
    (z,) = torch_npu.npu_grouped_matmul(
        [on_npu(x, dtype).t()],
        [on_npu(y, dtype)],
        split_item=3,
        group_type=2,
        group_list=listed(sizes, kind),
        group_list_type=kind,
    )
    assert_close(z, by_inner(x.t(), y, sizes))


def test_bias_and_a_list_of_integers():
    g = seeded("bias")
    x, weight, bias = (random(g, *s, grad=False) for s in ((4, 8), (2, 8, 3), (2, 3)))
    mine = [on_npu(t, torch.float32) for t in (x, weight, bias)]
    (y,) = torch_npu.npu_grouped_matmul(
        [mine[0]], [mine[1]], bias=[mine[2]], split_item=3, group_type=0, group_list=[1, 4], group_list_type=0
    )
    assert_close(y, by_rows(x, weight, [1, 3]) + bias[[0, 1, 1, 1]])


def test_split_results_and_products_without_groups():
    g = seeded("split")
    x, weight = random(g, 5, 8, grad=False), random(g, 2, 8, 3, grad=False)
    mine = [on_npu(t, torch.float32) for t in (x, weight)]
    parts = torch_npu.npu_grouped_matmul(
        [mine[0]], list(mine[1]), split_item=0, group_type=0, group_list=listed([2, 3], 0), group_list_type=0
    )
    for part, (a, b), w in zip(parts, spans([2, 3]), weight, strict=True):
        assert_close(part, x[a:b] @ w)
    pairs = torch_npu.npu_grouped_matmul([mine[0][:1], mine[0]], list(mine[1]), group_type=-1)
    for part, rows, w in zip(pairs, (1, 5), weight, strict=True):
        assert_close(part, x[:rows] @ w)


def test_output_type():
    x, weight = torch.ones(2, 4).bfloat16().npu(), torch.ones(1, 4, 3).bfloat16().npu()
    call = {"split_item": 2, "group_type": 0, "group_list": listed([2], 1), "group_list_type": 1}
    assert torch_npu.npu_grouped_matmul([x], [weight], **call, output_dtype=torch.float32)[0].dtype == torch.float32


@pytest.mark.parametrize(("poison", "is_nan"), [("off", False), ("fresh", True)])
def test_rows_beyond_the_groups_are_not_written(monkeypatch, poison, is_nan):
    monkeypatch.setenv("NPU_EMULATOR_POISON", poison)
    x, weight = torch.ones(5, 4).npu(), torch.ones(2, 4, 3).npu()
    (y,) = torch_npu.npu_grouped_matmul(
        [x], [weight], split_item=2, group_type=0, group_list=listed([2, 1], 1), group_list_type=1
    )
    assert (y[:3] == 4).all()
    assert y[3:].isnan().all() == is_nan


GOOD = {
    "x": [torch.ones(4, 8)],
    "weight": [torch.ones(2, 8, 3)],
    "split_item": 2,
    "group_type": 0,
    "group_list": torch.tensor([1, 4]),
    "group_list_type": 0,
}


def grouped(**change):
    def move(v):
        return v.npu() if isinstance(v, torch.Tensor) else [move(t) for t in v] if isinstance(v, list) else v

    return torch_npu.npu_grouped_matmul(**{k: move(v) for k, v in (GOOD | change).items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_type": None}, r"Requires manual passing group_type, current is None\."),
        ({"group_type": 1}, r"must be -1, 0 or 2, but now is \[1\]"),
        ({"split_item": 4}, r"Invalid value of split_item \[4\]"),
        ({"weight": []}, "neither x nor weight could be empty"),
        ({"group_list": torch.tensor([1, 4], dtype=torch.int32)}, r"group_list must be int64, but is torch\.int32"),
        ({"group_list": torch.tensor([1, 2, 4])}, "group_list has 3 groups, but there are 2 weights"),
        ({"group_list": torch.tensor([1, 5])}, "group_list adds up to 5 rows, but x has 4"),
        ({"group_list": torch.tensor([4, 1])}, r"group_list must not fall .* \[4, 1\]"),
        ({"group_list": None}, "group_list None"),
        ({"group_list_type": 2}, "implements group_list_type 0 .* not 2"),
        ({"weight": [torch.ones(2, 7, 3)]}, "x has 8 columns, but the weight has 7 rows"),
        ({"weight": [torch.ones(2, 8, 3, dtype=torch.bfloat16)]}, "x and weight must have one type"),
        ({"act_type": 1}, "does not implement act_type 1"),
        ({"scale": [torch.ones(3)]}, "does not implement scale"),
        ({"group_type": 2, "split_item": 0}, "When group_type is 2"),
        ({"group_type": -1}, "group_type -1 wants split_item 0 or 1"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    assert len(grouped()) == 1
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        grouped(**change)


def test_the_group_list_belongs_on_the_npu():
    with pytest.raises(RuntimeError, match=r"found at least two devices, cpu and npu:0! .*'group_list'"):
        torch_npu.npu_grouped_matmul(
            [torch.ones(4, 8).npu()], [torch.ones(2, 8, 3).npu()], group_type=0, group_list=torch.tensor([1, 4])
        )


@pytest.mark.parametrize(("dtype", "sizes", "kind", "as_list"), itertools.product(FLOATS, SIZES, (0, 1), (False, True)))
def test_mindspeeds_extension(dtype, sizes, kind, as_list):
    """npu_gmm forward, and the two backward functions against autograd of the formula."""
    g = seeded(dtype, sizes)
    x, weight = random(g, sum(sizes), 8, dtype=dtype), random(g, 3, 8, 6, dtype=dtype)
    groups = listed(sizes, kind)
    groups = groups.tolist() if as_list else groups
    mine = [on_npu(t, dtype).detach() for t in (x, weight)]
    expected = by_rows(x, weight, sizes)
    (y,) = ops.npu_gmm([mine[0]], [mine[1]], [], groups, 0, kind)
    assert_close(y, expected)
    grad = random(g, *expected.shape, dtype=dtype, grad=False)
    wanted = torch.autograd.grad(expected, (x, weight), grad)
    mine_grad = on_npu(grad, dtype)
    (dx,), (dw,), dbias = ops.npu_gmm_backward([mine_grad], [mine[0]], [mine[1]], groups, kind)
    assert dbias == []
    assert_close(dx, wanted[0])
    assert_close(dw, wanted[1])
    (dx,), dw, _ = ops.npu_gmm_backward_fusion([mine_grad], [mine[1]], groups, kind)
    assert dw == []
    assert_close(dx, wanted[0])


def test_gmm_by_inner_dimension():
    g = seeded("inner")
    x, y = random(g, 5, 4, grad=False), random(g, 5, 6, grad=False)
    (z,) = ops.npu_gmm([on_npu(x, torch.float32).t()], [on_npu(y, torch.float32)], [], [2, 5], 2, 0)
    assert_close(z, by_inner(x.t(), y, [2, 3]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_added_to_float32(dtype):
    g = seeded(dtype)
    x, dy = random(g, 5, 4, dtype=dtype, grad=False), random(g, 5, 6, dtype=dtype, grad=False)
    start = random(g, 3, 4, 6, grad=False)
    grad = on_npu(start, torch.float32)
    mine = [on_npu(t, dtype) for t in (x, dy)]
    assert ops.npu_groupmatmul_add_fp32(*mine, listed([2, 0, 3], 0), grad) is None
    assert_close(grad, start + by_inner(x.t(), dy, [2, 0, 3]))
    for function in (torch_npu._npu_matmul_add_fp32, ops.npu_matmul_add_fp32):
        grad = on_npu(start[0], torch.float32)
        function(*mine, grad)
        assert_close(grad, start[0] + torch.einsum("mi,mj->ij", x, dy))


def test_only_float32_is_added_to():
    x = torch.ones(2, 3).npu()
    with pytest.raises(RuntimeError, match=r"C must be float32, but is torch\.bfloat16"):
        torch_npu._npu_matmul_add_fp32(x, x, torch.zeros(3, 3, dtype=torch.bfloat16).npu())
    with pytest.raises(RuntimeError, match=r"grad must be float32, but is torch\.float16"):
        ops.npu_groupmatmul_add_fp32(x, x, listed([2], 0), torch.zeros(1, 3, 3, dtype=torch.float16).npu())


def test_the_table_of_extensions_calls_operators_by_position():
    from torch_npu.operators import JIT_EXTENSIONS

    functions = JIT_EXTENSIONS["grouped_matmul_v2"]
    assert set(functions) == {"npu_gmm", "npu_gmm_backward", "npu_gmm_backward_fusion"}
    (y,) = functions["npu_gmm"]([torch.ones(2, 4).npu()], [torch.ones(1, 4, 3).npu()], [], listed([2], 1), 0, 1)
    assert (y == 4).all()
