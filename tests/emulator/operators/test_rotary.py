"""Rotary embeddings against multiplication by complex numbers."""

import itertools

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, assert_close, compare, on_npu, random, seeded

ops = torch.ops.mindspeed_extension


def turned(x, angles, interleaved):
    """x [.., D] turned by angles [.., D/2], which broadcast: pairs as complex numbers."""
    half = x.shape[-1] // 2
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.stack((z.real, z.imag), -1).flatten(-2) if interleaved else torch.cat((z.real, z.imag), -1)


def cos_sin(angles, interleaved):
    both = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return both.cos(), both.sin()


def by_formula(x, cos, sin, interleaved):
    """The definition with independent cosines and sines, so that their gradients exist: index by index."""
    width = x.shape[-1]
    columns = []
    for i in range(width):
        partner = (i ^ 1) if interleaved else (i + width // 2) % width
        sign = -1 if (i % 2 == 0 if interleaved else i < width // 2) else 1
        columns.append(x[..., i] * cos[..., i] + sign * x[..., partner] * sin[..., i])
    return torch.stack(columns, -1)


@pytest.mark.parametrize(("dtype", "mode"), itertools.product(FLOATS, ("half", "interleave")))
def test_rotary_mul_with_all_gradients(dtype, mode):
    g = seeded(dtype, mode)
    x = random(g, 5, 2, 3, 8, dtype=dtype)
    cos, sin = random(g, 5, 1, 1, 8, dtype=dtype), random(g, 5, 1, 1, 8, dtype=dtype)
    compare(
        lambda *a: torch_npu.npu_rotary_mul(*a, mode),
        lambda *a: by_formula(*a, mode == "interleave"),
        [x, cos, sin],
        dtype,
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_mul_turns_pairs(interleaved):
    g = seeded(interleaved)
    x, angles = random(g, 4, 2, 1, 6, grad=False), random(g, 4, 1, 1, 3, grad=False)
    cos, sin = cos_sin(angles, interleaved)
    mine = [on_npu(t, torch.float32) for t in (x, cos, sin)]
    y = torch_npu.npu_rotary_mul(*mine, "interleave" if interleaved else "half")
    assert_close(y, turned(x, angles, interleaved))


def test_rotary_mul_refuses_another_mode():
    x = torch.ones(1, 1, 1, 4).npu()
    with pytest.raises(
        RuntimeError, match="rotary_mode of npu_rotary_mul should be half or interleave, but got quarter"
    ):
        torch_npu.npu_rotary_mul(x, x, x, "quarter")


def test_rotary_mul_takes_the_type_of_x():
    x = torch.randn(2, 1, 1, 4).bfloat16().npu().requires_grad_()
    angle = torch.randn(2, 1, 1, 4).npu()
    y = torch_npu.npu_rotary_mul(x, angle, angle)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "mode"), itertools.product(FLOATS, (0, 1)))
def test_rotary_position_embedding_with_all_gradients(dtype, mode):
    g = seeded(dtype, mode)
    x = random(g, 5, 2, 3, 8, dtype=dtype)
    cos, sin = random(g, 5, 1, 1, 8, dtype=dtype), random(g, 5, 1, 1, 8, dtype=dtype)
    compare(
        lambda *a: ops.npu_rotary_position_embedding(*a, mode), lambda *a: by_formula(*a, mode), [x, cos, sin], dtype
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(2, 2, 4)}, "dims of input x should be 4 dimensional"),
        (
            {"x": torch.ones(1, 1, 2, 5), "cos": torch.ones(1, 1, 2, 5), "sin": torch.ones(1, 1, 2, 5)},
            "even number, but got 5",
        ),
        ({"sin": torch.ones(1, 1, 1, 4)}, "shape of input Tensor cos and sin should be same"),
        ({"cos": torch.ones(1, 1, 2, 4, dtype=torch.int64)}, "cos dtype .* is invalid"),
        ({"mode": 2}, "mode of rotate should be 0"),
    ],
)
def test_rotary_position_embedding_refuses(change, message):
    call = {
        "x": torch.ones(1, 1, 2, 4),
        "cos": torch.ones(1, 1, 2, 4),
        "sin": torch.ones(1, 1, 2, 4),
        "mode": 0,
    } | change
    with pytest.raises(RuntimeError, match=message):
        ops.npu_rotary_position_embedding(*(v.npu() if isinstance(v, torch.Tensor) else v for v in call.values()))


@pytest.mark.parametrize(("dtype", "interleaved"), itertools.product(FLOATS, (False, True)))
def test_apply_rotary_pos_emb_writes_in_place(dtype, interleaved):
    g = seeded(dtype, interleaved)
    query, key = random(g, 2, 3, 4, 8, dtype=dtype, grad=False), random(g, 2, 3, 2, 8, dtype=dtype, grad=False)
    cos, sin = (random(g, 2, 3, 1, 8, dtype=dtype, grad=False) for _ in range(2))
    mine = [on_npu(t, dtype) for t in (query, key, cos, sin)]
    results = torch_npu.npu_apply_rotary_pos_emb(*mine, "BSND", "interleave" if interleaved else "half")
    for before, given, result in zip((query, key), mine, results, strict=False):
        assert result.data_ptr() == given.data_ptr()
        assert_close(given, by_formula(before, cos.expand_as(before), sin.expand_as(before), interleaved))


def rope_cache(positions, width):
    angles = torch.arange(positions)[:, None] * 0.7 ** torch.arange(width // 2)
    return angles, torch.cat((angles.cos(), angles.sin()), -1)


@pytest.mark.parametrize(("dtype", "neox", "width"), itertools.product(FLOATS, (True, False), (8, 4)))
def test_rotary_embedding_by_position(dtype, neox, width):
    """width 4: only the first half of a head of 8 is turned."""
    g = seeded(dtype, neox, width)
    query, key = random(g, 5, 24, dtype=dtype, grad=False), random(g, 5, 16, dtype=dtype, grad=False)
    angles, cache = rope_cache(32, width)
    positions = torch.tensor([3, 0, 31, 7, 7])
    mine = [on_npu(t, dtype) for t in (query, key)]
    assert torch_npu._npu_rotary_embedding(positions.npu(), *mine, 8, cache.to(dtype).npu(), neox) is None
    rounded = cache.to(dtype).double()
    assert torch.allclose(rounded[:, : width // 2], angles.double().cos(), atol=1e-2)
    for before, after in zip((query, key), mine, strict=True):
        heads = before.reshape(5, -1, 8).clone()
        cos, sin = (t[positions][:, None] for t in rounded.chunk(2, -1))
        both = (lambda t: torch.cat((t, t), -1)) if neox else (lambda t: t.repeat_interleave(2, -1))
        heads[..., :width] = by_formula(heads[..., :width], both(cos), both(sin), not neox)
        assert_close(after, heads.reshape(before.shape))


def test_a_second_cache_is_warned_about():
    """The real operator keeps the first cache of the process."""
    query, key = torch.ones(1, 8).npu(), torch.ones(1, 8).npu()
    caches = [torch.full((4, 8), value).npu() for value in (0.25, 0.5, 0.75)]
    with pytest.warns(UserWarning, match="keeps the first one of the process"):
        from torch_npu.operators import rotary

        rotary._cache_sums.clear()
        for cache in caches:
            torch_npu._npu_rotary_embedding(torch.zeros(1, dtype=torch.int64).npu(), query, key, 8, cache, True)


def test_an_in_place_target_must_be_contiguous():
    query = torch.ones(8, 2).npu().t()
    with pytest.raises(RuntimeError, match=r"pass query\.contiguous\(\)"):
        torch_npu._npu_rotary_embedding(
            torch.zeros(2, dtype=torch.int64).npu(), query, torch.ones(2, 8).npu(), 8, torch.ones(4, 8).npu(), True
        )
