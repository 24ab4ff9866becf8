"""npu_fusion_attention in every layout and sparse mode against attention row by row, gradients included."""

import functools
import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.attention_formula import attention, statistics
from tests.emulator.operators.comparison import FLOATS, assert_close, on_npu, random, seeded

SCALE = 0.4
PRE, NEXT = 2, 1
TO_LAYOUT = {
    "BNSD": lambda x: x.permute(0, 2, 1, 3),
    "BSND": lambda x: x,
    "BSH": lambda x: x.flatten(2),
    "SBH": lambda x: x.flatten(2).transpose(0, 1),
}


@functools.cache
def compressed_mask():
    return torch.triu(torch.ones(2048, 2048, dtype=torch.bool), diagonal=1).npu()


def rule(mode, rows, columns, mask=None):
    """Which keys a query looks at, from the description of the sparse modes."""
    shift = columns - rows
    return {
        0: lambda i, j: mask is None or (not mask[i, j] and i - PRE <= j <= i + NEXT),
        1: lambda i, j: not mask[i, j],
        2: lambda i, j: j <= i,
        3: lambda i, j: j <= i + shift,
        4: lambda i, j: i + shift - PRE <= j <= i + shift + NEXT,
    }[mode]


def problem(g, batch, rows, columns, heads, groups, dtype, width=8, value_width=8):
    """query, key, value as [B, S, N, D] in float64."""
    return (
        random(g, batch, rows, heads, width, dtype=dtype),
        random(g, batch, columns, groups, width, dtype=dtype),
        random(g, batch, columns, groups, value_width, dtype=dtype),
    )


def check_against_formula(tensors, to_layout, heads, layout, expected, dtype, **arguments):
    """Runs the operator and compares the result and the three gradients."""
    mine = [on_npu(t, dtype) for t in tensors]
    result, maximum, total, _, *_ = torch_npu.npu_fusion_attention(
        *(to_layout(t) for t in mine), heads, layout, scale=SCALE, **arguments
    )
    # gradients are computed from the rounded result, so they may be off by more than a rounding of their own
    accumulated = 1e-5 if dtype == torch.float32 else 1e-2
    assert_close(result, to_layout(expected))
    grad = random(seeded("grad", tuple(expected.shape)), *expected.shape, dtype=dtype, grad=False)
    mine_grads = torch.autograd.grad(result, mine, to_layout(on_npu(grad, dtype)))
    for got, want in zip(mine_grads, torch.autograd.grad(expected, tensors, grad), strict=True):
        assert_close(got, want, accumulated=accumulated)
    assert maximum.dtype == total.dtype == torch.float32
    assert not maximum.requires_grad and not total.requires_grad
    return maximum, total


@pytest.mark.parametrize(("layout", "mode"), itertools.product(TO_LAYOUT, range(5)))
def test_layouts_and_sparse_modes(layout, mode):
    g = seeded(layout, mode)
    batch, rows, columns, heads, groups = 2, 4, 6, 4, 2
    tensors = problem(g, batch, rows, columns, heads, groups, torch.float32)
    mask = torch.rand(batch, 1, rows, columns, generator=g) < 0.3
    mask[..., 0] = False
    arguments = {"atten_mask": mask.npu() if mode < 2 else compressed_mask(), "sparse_mode": mode}
    arguments |= {"pre_tockens": PRE, "next_tockens": NEXT} if mode in (0, 4) else {}
    expected = torch.stack(
        [attention(*(t[b] for t in tensors), SCALE, rule(mode, rows, columns, mask[b, 0])) for b in range(batch)]
    )
    maximum, _ = check_against_formula(tensors, TO_LAYOUT[layout], heads, layout, expected, torch.float32, **arguments)
    assert maximum.shape == (batch, heads, rows, 8)


@pytest.mark.parametrize(("dtype", "seed"), itertools.product(FLOATS, range(6)))
def test_random_shapes_without_mask(dtype, seed):
    g = seeded(dtype, seed)
    batch, rows, columns, groups, each, width, value_width = (
        int(torch.randint(1, 6, (), generator=g)) for _ in range(7)
    )
    tensors = problem(g, batch, rows, columns, groups * each, groups, dtype, width, value_width)
    expected = torch.stack([attention(*(t[b] for t in tensors), SCALE, lambda i, j: True) for b in range(batch)])
    check_against_formula(tensors, TO_LAYOUT["BNSD"], groups * each, "BNSD", expected, dtype)


def packed(g, lengths, key_lengths, heads, groups, dtype):
    query = random(g, sum(lengths), heads, 8, dtype=dtype)
    key, value = (random(g, sum(key_lengths), groups, 8, dtype=dtype) for _ in range(2))
    ends, key_ends = (list(itertools.accumulate(x)) for x in (lengths, key_lengths))
    return (query, key, value), ends, key_ends


def spans(ends):
    return list(itertools.pairwise([0, *ends]))


def packed_attention(tensors, ends, key_ends, mode):
    query, key, value = tensors
    pieces = [
        attention(query[a:b], key[c:d], value[c:d], SCALE, rule(mode, b - a, d - c))
        for (a, b), (c, d) in zip(spans(ends), spans(key_ends), strict=True)
    ]
    return torch.cat(pieces)


@pytest.mark.parametrize(("dtype", "mode"), itertools.product(FLOATS, (0, 2, 3, 4)))
def test_packed_sequences(dtype, mode):
    """Layout TND, among them an empty sequence and one with more keys than queries."""
    g = seeded("TND", dtype, mode)
    tensors, ends, key_ends = packed(g, [3, 0, 1, 5], [3, 2, 4, 6], 4, 2, dtype)
    arguments = {"actual_seq_qlen": ends, "actual_seq_kvlen": key_ends, "sparse_mode": mode}
    arguments |= {"atten_mask": compressed_mask()} if mode else {}
    arguments |= {"pre_tockens": PRE, "next_tockens": NEXT} if mode == 4 else {}
    expected = packed_attention(tensors, ends, key_ends, mode)
    check_against_formula(tensors, lambda t: t, 4, "TND", expected, dtype, **arguments)


@pytest.mark.parametrize("mode", [0, 1])
def test_without_a_mask_every_key_is_looked_at(mode):
    """Mode 1 without a mask is what MindSpeed's ring passes where attention is not causal."""
    tensors = problem(seeded("no mask", mode), 1, 4, 6, 2, 2, torch.float32)
    expected = attention(*(t[0] for t in tensors), SCALE, rule(0, 4, 6))[None]
    check_against_formula(tensors, TO_LAYOUT["SBH"], 2, "SBH", expected, torch.float32, sparse_mode=mode)


@pytest.mark.parametrize("mode", [0, 1])
def test_packed_sequences_under_a_whole_mask(mode):
    """One mask as large as the longest sequence; each takes its upper left corner."""
    g = seeded("whole mask", mode)
    (query, key, value), ends, key_ends = packed(g, [3, 5], [4, 6], 4, 2, torch.float32)
    mask = torch.rand(5, 6, generator=g) < 0.4
    mask[:, 0] = mask.diagonal()[:] = False
    allowed = rule(1, 0, 0, mask)  # in mode 0 the tokens before and after are not limited here
    expected = torch.cat(
        [
            attention(query[a:b], key[c:d], value[c:d], SCALE, allowed)
            for (a, b), (c, d) in zip(spans(ends), spans(key_ends), strict=True)
        ]
    )
    arguments = {"actual_seq_qlen": ends, "actual_seq_kvlen": key_ends, "sparse_mode": mode, "atten_mask": mask.npu()}
    check_against_formula((query, key, value), lambda t: t, 4, "TND", expected, torch.float32, **arguments)


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_statistics_of_packed_sequences(softmax_layout):
    """[T, N, 8] in which a sequence's block is laid out [N, s, 8], as ring attention expects; or plainly [T, N, 8]."""
    g = seeded("statistics")
    (query, key, value), ends, key_ends = packed(g, [3, 5], [4, 5], 4, 2, torch.float32)
    _, maximum, total, *_ = torch_npu.npu_fusion_attention(
        *(on_npu(t, torch.float32) for t in (query, key, value)),
        4,
        "TND",
        scale=SCALE,
        actual_seq_qlen=ends,
        actual_seq_kvlen=key_ends,
        softmax_layout=softmax_layout,
    )
    assert maximum.shape == total.shape == (8, 4, 8)
    for number, found in enumerate((maximum.cpu(), total.cpu())):
        start = 0
        for (a, b), (c, d) in zip(spans(ends), spans(key_ends), strict=True):
            want = statistics(query[a:b], key[c:d], SCALE, lambda i, j: True)[number].float()
            if softmax_layout == "TND":
                block = found[a:b]
            else:
                block = found.reshape(-1)[start : start + (b - a) * 32].reshape(4, b - a, 8).transpose(0, 1)
            torch.testing.assert_close(block, want[..., None].expand(-1, -1, 8), rtol=1e-5, atol=1e-5)
            start += (b - a) * 32


def test_statistics_of_batches():
    g = seeded("batches")
    query, key, value = problem(g, 2, 3, 4, 4, 2, torch.float32)
    _, maximum, total, *_ = torch_npu.npu_fusion_attention(
        *(on_npu(t, torch.float32).flatten(2) for t in (query, key, value)), 4, "BSH", scale=SCALE
    )
    for b in range(2):
        for found, want in zip((maximum, total), statistics(query[b], key[b], SCALE, lambda i, j: True), strict=True):
            assert_close(found[b], want.t()[..., None].expand(4, 3, 8))


def test_gradient_with_statistics_of_more_keys():
    """Ring attention: the keys come in two parts, each part's gradient uses maximum, sum and result over both."""
    g = seeded("ring")
    query, key, value = problem(g, 1, 3, 6, 2, 2, torch.float32)
    mine = [on_npu(t.squeeze(0).unsqueeze(1).flatten(2), torch.float32).detach() for t in (query, key, value)]
    whole = torch_npu.npu_fusion_attention(*mine, 2, "SBH", scale=SCALE)
    grad = torch.randn(3, 1, 16, generator=g).npu()

    def gradients(key, value):
        return torch_npu.npu_fusion_attention_grad(
            mine[0],
            key,
            value,
            grad,
            2,
            "SBH",
            softmax_max=whole[1],
            softmax_sum=whole[2],
            attention_in=whole[0],
            scale_value=SCALE,
        )

    all_keys = gradients(mine[1], mine[2])
    first, second = gradients(mine[1][:4], mine[2][:4]), gradients(mine[1][4:], mine[2][4:])
    assert_close(first[0] + second[0], all_keys[0].cpu().double())
    for index in (1, 2):
        assert_close(torch.cat((first[index], second[index])), all_keys[index].cpu().double())
    assert all_keys[3] is None


def test_a_query_that_looks_nowhere_gives_zeros():
    """sparse_mode 3 with more queries than keys."""
    tensors = problem(seeded("nowhere"), 1, 4, 2, 2, 2, torch.float32)
    expected = attention(*(t[0] for t in tensors), SCALE, rule(3, 4, 2))[None]
    assert (expected[0, :2] == 0).all() and (expected[0, 2:] != 0).all()
    check_against_formula(
        tensors,
        TO_LAYOUT["BSND"],
        2,
        "BSND",
        expected,
        torch.float32,
        sparse_mode=3,
        atten_mask=compressed_mask(),
    )


def test_version_2_and_its_gradient():
    g = seeded("v2")
    tensors = problem(g, 2, 3, 4, 4, 2, torch.float32)
    mine = [on_npu(t, torch.float32) for t in tensors]
    result = torch_npu.npu_fusion_attention_v2(
        *(t.flatten(2) for t in mine),
        4,
        "BSH",
        scale=SCALE,
        pre_tokens=PRE,
        next_tokens=NEXT,
        sparse_mode=4,
        atten_mask=compressed_mask(),
    )[0]
    expected = torch.stack([attention(*(t[b] for t in tensors), SCALE, rule(4, 3, 4)) for b in range(2)])
    assert_close(result, expected.flatten(2))
    grad = random(g, *expected.shape, grad=False)
    mine_grads = torch.autograd.grad(result, mine, on_npu(grad, torch.float32).flatten(2))
    for got, want in zip(mine_grads, torch.autograd.grad(expected, tensors, grad), strict=True):
        assert_close(got, want)


def test_mindspeeds_extension_takes_arguments_by_position():
    """MindSpeed 35da6ac, ops/fusion_attention_v2.py."""
    from torch_npu.operators import JIT_EXTENSIONS

    functions = JIT_EXTENSIONS["fusion_attention_v2"]
    g = seeded("extension")
    tensors = problem(g, 1, 3, 3, 2, 2, torch.float32)
    mine = [on_npu(t, torch.float32).detach() for t in tensors]
    mask, none = compressed_mask(), None
    middle = (SCALE, 1.0, 2147483647, 2147483647, 0)
    end = (none, none, none, 3, True, False, 1, none, none)
    result, maximum, total, rest, *random_state = functions["npu_fusion_attention_v2"](
        *mine, 2, "BSND", none, none, mask, *middle, *end
    )
    expected = attention(*(t[0] for t in tensors), SCALE, rule(3, 3, 3))[None]
    assert_close(result, expected)
    grad = random(g, *expected.shape, grad=False)
    grads = functions["npu_fusion_attention_grad_v2"](
        *mine,
        on_npu(grad, torch.float32),
        2,
        "BSND",
        none,
        none,
        mask,
        maximum,
        total,
        rest,
        result,
        *middle,
        *random_state,
        *end,
    )
    assert len(grads) == 4 and grads[3] is None
    for got, want in zip(grads, torch.autograd.grad(expected, tensors, grad), strict=False):
        assert_close(got, want)


def dropout_run(query, key, value, keep):
    return torch_npu.npu_fusion_attention(query, key, value, 2, "BSND", keep_prob=keep)


def test_dropout_keeps_the_expectation_and_repeats_in_backward():
    g = seeded("dropout")
    query = torch.zeros(1, 64, 2, 8).npu()
    key = torch.randn(1, 64, 2, 8, generator=g).npu()
    value = torch.ones(1, 64, 2, 8).npu().requires_grad_()
    result, *_, seed, _, numels = dropout_run(query, key, value, 0.75)
    assert numels == 2 * 64 * 64
    kept = result[..., 0].detach().cpu() * 64 * 0.75  # every kept key counts 1 / (64 * 0.75)
    torch.testing.assert_close(kept, kept.round(), atol=1e-3, rtol=0)
    assert 0.72 < (kept.mean() / 64) < 0.78
    (grad,) = torch.autograd.grad(result.sum(), value)
    # each value's gradient is the sum of the weights that kept it: in all, the sum of the results
    assert_close(grad[..., 0].sum(), result[..., 0].detach().cpu().double().sum())
    other, *_, other_seed, _, _ = dropout_run(query, key, value, 0.75)
    assert other_seed != seed and not torch.equal(other, result)


def test_dropout_follows_the_generator_of_the_device():
    query, key, value = (torch.randn(1, 8, 2, 8).npu() for _ in range(3))
    runs = []
    for _ in range(2):
        torch.npu.manual_seed_all(7)
        runs.append(dropout_run(query, key, value, 0.5)[0])
    assert torch.equal(*runs)


GOOD = {
    "query": torch.ones(2, 3, 16),
    "key": torch.ones(2, 3, 16),
    "value": torch.ones(2, 3, 16),
    "head_num": 2,
    "input_layout": "BSH",
}
PACKED = {
    "query": torch.ones(4, 2, 8),
    "key": torch.ones(4, 2, 8),
    "value": torch.ones(4, 2, 8),
    "input_layout": "TND",
    "actual_seq_qlen": [4],
    "actual_seq_kvlen": [4],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_num": 0}, "head_num must > 0, but got 0"),
        ({"query": torch.ones(3, 16)}, "input query should be 3 or 4 dimensional, but got 2-dimensional"),
        ({"keep_prob": 0.0}, r"keep_prob value must be in range of \(0, 1\]"),
        ({"input_layout": "SBND"}, "should be BSH/SBH/BNSD/BSND/TND"),
        ({"sparse_mode": 7}, r"must be in range of \[0,6\], but got 7"),
        ({"sparse_mode": 6}, "implements sparse_mode 0 to 4, not 6"),
        ({"sparse_mode": 2}, "needs the compressed atten_mask of 2048x2048, but it is None"),
        (
            {"sparse_mode": 3, "atten_mask": torch.ones(3, 3, dtype=torch.bool)},
            r"2048x2048, but it is of shape \(3, 3\)",
        ),
        (
            {"sparse_mode": 3, "atten_mask": torch.ones(2048, 2048, dtype=torch.bool).tril()},
            "exactly above the diagonal",
        ),
        ({"atten_mask": torch.ones(3, 3)}, "atten_mask must be bool or uint8, but is torch.float32"),
        ({"atten_mask": torch.ones(3, 4, dtype=torch.bool)}, r"needs the whole mask, \[..., 3, 3\]"),
        ({"key": torch.ones(2, 3, 16, dtype=torch.bfloat16)}, "must have one type"),
        ({"softmax_layout": "TND"}, "only supported when input_layout_str=TND"),
        ({"pse": torch.ones(2, 2, 3, 3)}, "does not implement pse"),
        ({**PACKED, "sparse_mode": 5}, r"must be in range of \[0,5\) or \(5,8\], but got 5"),
        ({**PACKED, "actual_seq_qlen": None}, "the same and cannot be empty"),
        ({**PACKED, "actual_seq_qlen": [3]}, r"actual_seq_qlen must rise to the number of tokens, 4, but is \[3\]"),
        ({**PACKED, "actual_seq_kvlen": [5]}, r"actual_seq_kvlen must rise to the number of tokens, 4, but is \[5\]"),
        ({**PACKED, "head_num": 4}, r"TND wants query \[T, 4, D\]"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    call = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in (GOOD | change).items()}
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.npu_fusion_attention(**call)


def test_the_gradient_needs_what_the_forward_saved():
    x = torch.ones(2, 3, 16).npu()
    with pytest.raises(RuntimeError, match="needs the forward's softmax_max, softmax_sum, but found None"):
        torch_npu.npu_fusion_attention_grad(x, x, x, x, 2, "BSH", attention_in=x)
