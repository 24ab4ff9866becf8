"""Holds operators against formulas: the operator in its type on the npu, the formula in float64 on the CPU.

Both get the same values. Kernels compute in float32 and round once, so a result may be off by one rounding of its type
and by float32's own errors, which grow with the largest value.
"""

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
ACCUMULATED = 1e-5
"""Errors of a few hundred float32 operations, relative to the largest value."""


def random(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = True):
    """A random CPU tensor whose values are exact in `dtype`, as float64."""
    values = torch.randn(shape, generator=generator).to(dtype).double()
    return values.requires_grad_(grad)


def seeded(*parts) -> torch.Generator:
    """A generator that depends on its arguments alone."""
    return torch.Generator().manual_seed(_number(parts))


def _number(parts) -> int:
    number = 0
    for character in repr(parts):
        number = (number * 131 + ord(character)) % 2**31
    return number


def on_npu(tensor, dtype: torch.dtype | None = None):
    """A leaf of the given type on the npu with the same values."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    moved = tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype).npu()
    return moved.requires_grad_(tensor.requires_grad)


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, roundings: float = 1.0, accumulated: float = ACCUMULATED
):
    """Within `roundings` of the type of `actual`, plus `accumulated` times the largest expected value (at least 1)."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert actual.device.type == "npu", f"result lies on {actual.device}"
    largest = expected.detach().abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(
        actual.detach().cpu().double(),
        expected.detach().double(),
        rtol=roundings * ROUNDING[actual.dtype],
        atol=accumulated * max(largest, 1.0),
    )


def compare(operator, formula, inputs, dtype: torch.dtype, *, roundings: float = 1.0, accumulated: float = ACCUMULATED):
    """The operator's first result and its gradients against the formula's, on the same inputs.

    inputs  CPU tensors in float64 (moved in `dtype`), index tensors (moved as they are) and anything else.
    """
    mine = [on_npu(x, dtype) for x in inputs]
    actual, expected = operator(*mine), formula(*inputs)
    actual = actual[0] if isinstance(actual, tuple) else actual
    assert actual.dtype == dtype
    assert_close(actual, expected, roundings, accumulated)
    wanted = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not wanted:
        return
    grad = random(seeded("grad", tuple(expected.shape)), *expected.shape, dtype=dtype, grad=False)
    mine_grads = torch.autograd.grad(actual, [mine[i] for i in wanted], on_npu(grad, dtype))
    grads = torch.autograd.grad(expected, [inputs[i] for i in wanted], grad)
    for index, got, want in zip(wanted, mine_grads, grads, strict=True):
        assert got.dtype == mine[index].dtype, f"gradient of input {index} has type {got.dtype}"
        assert_close(got, want, roundings, accumulated)


def choices(g, tokens, experts, k):
    """k different experts for every token."""
    return torch.stack([torch.randperm(experts, generator=g)[:k] for _ in range(tokens)]).reshape(tokens, k)
