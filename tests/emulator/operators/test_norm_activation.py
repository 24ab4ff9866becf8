"""Norms and activations against their formulas, gradients included."""

import itertools
import math

import pytest
import torch
import torch_npu

from tests.emulator.operators.comparison import FLOATS, assert_close, compare, on_npu, random, seeded

SHAPES = ((1, 2), (5, 8), (3, 4, 16), (2, 3, 2, 6), (0, 8))


def rms_norm(x, gamma, epsilon=1e-6):
    """Element by element through the norm's length instead of the mean's root."""
    width = gamma.numel()
    flat = x.reshape(-1, width)
    length = torch.linalg.vector_norm(
        torch.cat((flat, flat.new_full((len(flat), 1), math.sqrt(width * epsilon))), 1), dim=1
    )
    return (flat * gamma.reshape(-1) / (length / math.sqrt(width))[:, None]).reshape(x.shape)


@pytest.mark.parametrize(("dtype", "shape"), itertools.product(FLOATS, SHAPES))
def test_rms_norm(dtype, shape):
    g = seeded(dtype, shape)
    x, gamma = random(g, *shape, dtype=dtype), random(g, shape[-1], dtype=dtype)
    compare(torch_npu.npu_rms_norm, rms_norm, [x, gamma, 1e-6], dtype, roundings=1)


def test_rms_norm_over_two_dimensions():
    g = seeded("two")
    x, gamma = random(g, 3, 4, 6), random(g, 4, 6)
    compare(torch_npu.npu_rms_norm, rms_norm, [x, gamma, 1e-5], torch.float32)
    _, rstd = torch_npu.npu_rms_norm(on_npu(x, torch.float32), on_npu(gamma, torch.float32), 1e-5)
    assert rstd.shape == (3, 1, 1) and rstd.dtype == torch.float32 and not rstd.requires_grad


def test_rms_norm_takes_epsilon_into_account():
    tiny = torch.full((1, 4), 1e-4).npu()
    y, rstd = torch_npu.npu_rms_norm(tiny, torch.ones(4).npu(), epsilon=1.0)
    assert_close(y, torch.full((1, 4), 1e-4, dtype=torch.float64))
    assert_close(rstd, torch.ones(1, 1, dtype=torch.float64))


def test_rms_norm_gradient_of_gamma_is_summed_in_float32():
    """4,096 equal contributions of 1/256: a sum in bfloat16 would stop growing at 1."""
    x = torch.ones(4096, 2, dtype=torch.bfloat16).npu()
    dy = torch.full((4096, 2), 1 / 256, dtype=torch.bfloat16).npu()
    gamma = torch.ones(2, dtype=torch.bfloat16).npu()
    _, rstd = torch_npu.npu_rms_norm(x, gamma, 0.0)
    _, dgamma = torch_npu.npu_rms_norm_backward(dy, x, gamma, rstd)
    assert dgamma.dtype == torch.float32
    assert dgamma.tolist() == [16.0, 16.0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_add_rms_norm(dtype):
    g = seeded(dtype)
    x1, x2, gamma = (random(g, *s, dtype=dtype, grad=False) for s in ((5, 8), (5, 8), (8,)))
    y, rstd, total = torch_npu.npu_add_rms_norm(*(on_npu(t, dtype) for t in (x1, x2, gamma)), 1e-6)
    expected = (x1 + x2).to(dtype).double()
    assert_close(total, expected, accumulated=0)
    assert_close(y, rms_norm(expected, gamma))
    assert_close(rstd, 1 / (expected.square().mean(1, keepdim=True) + 1e-6).sqrt(), roundings=4)


def test_norm_of_wrong_width_is_refused():
    with pytest.raises(RuntimeError, match=r"gamma must have the last dimensions of x, \(2, 4\), but it is \(3,\)"):
        torch_npu.npu_rms_norm(torch.ones(2, 4).npu(), torch.ones(3).npu())


def swiglu(x, dim=-1):
    gate, up = x.tensor_split(2, dim)
    return gate * up / (1 + torch.exp(-gate))


@pytest.mark.parametrize(("dtype", "dim"), itertools.product(FLOATS, (-1, 0, 1)))
def test_swiglu(dtype, dim):
    x = random(seeded(dtype, dim), 4, 6, 8, dtype=dtype)
    compare(torch_npu.npu_swiglu, swiglu, [x, dim], dtype)


def test_swiglu_of_odd_width_is_refused():
    with pytest.raises(RuntimeError, match="must be even"):
        torch_npu.npu_swiglu(torch.ones(2, 3).npu())


@pytest.mark.parametrize("dtype", FLOATS)
def test_fast_gelu(dtype):
    x = random(seeded(dtype), 7, 5, dtype=dtype)
    compare(torch_npu.npu_fast_gelu, lambda x: x / (1 + torch.exp(-1.702 * x)), [x], dtype)


def masked_softmax(x, mask, scale=1.0, fixed=False):
    if fixed:
        mask = torch.tensor([[j > i for j in range(x.shape[-1])] for i in range(x.shape[-2])])
    scores = torch.where(mask, torch.tensor(-10000.0, dtype=x.dtype), x * scale)
    shifted = torch.exp(scores - scores.max(-1, keepdim=True).values.detach())
    return shifted / shifted.sum(-1, keepdim=True)


@pytest.mark.parametrize(("dtype", "fixed"), itertools.product(FLOATS, (False, True)))
def test_scaled_masked_softmax(dtype, fixed):
    g = seeded(dtype, fixed)
    x = random(g, 2, 3, 5, 5, dtype=dtype)
    mask = torch.rand(2, 1, 5, 5, generator=g) < 0.4
    # the gradient is computed from the rounded result
    accumulated = 1e-5 if dtype == torch.float32 else 5e-3
    inputs = [x, mask, 0.7, fixed]
    compare(torch_npu.npu_scaled_masked_softmax, masked_softmax, inputs, dtype, roundings=3, accumulated=accumulated)


def test_a_row_masked_throughout_gives_equal_shares():
    y = torch_npu.npu_scaled_masked_softmax(
        torch.randn(1, 1, 2, 4).npu(), torch.ones(1, 1, 2, 4, dtype=torch.bool).npu()
    )
    assert_close(y, torch.full((1, 1, 2, 4), 0.25, dtype=torch.float64))


def test_softmax_wants_a_bool_mask():
    with pytest.raises(RuntimeError, match=r"mask must be bool, but is torch\.float32"):
        torch_npu.npu_scaled_masked_softmax(torch.ones(1, 1, 2, 2).npu(), torch.ones(1, 1, 2, 2).npu())
