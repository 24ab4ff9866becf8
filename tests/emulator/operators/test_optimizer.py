"""npu_apply_fused_adamw_v2 against AdamW written out in float64."""

import itertools

import pytest
import torch
import torch_npu  # noqa: F401

from tests.emulator.operators.comparison import assert_close, seeded


def adamw(param, grads, lr, beta1, beta2, decay, eps, amsgrad, maximize):
    """Kingma & Ba with decoupled decay, the moments as explicit sums over the steps so far."""
    largest = torch.zeros_like(param)
    for step in range(1, len(grads) + 1):
        signed = [-g if maximize else g for g in grads[:step]]
        first = sum((1 - beta1) * beta1 ** (step - 1 - i) * g for i, g in enumerate(signed))
        second = sum((1 - beta2) * beta2 ** (step - 1 - i) * g * g for i, g in enumerate(signed))
        largest = torch.maximum(largest, second)
        spread = ((largest if amsgrad else second) / (1 - beta2**step)).sqrt() + eps
        param = param - lr * decay * param - lr * first / (1 - beta1**step) / spread
    return param, first, second, largest


@pytest.mark.parametrize(("amsgrad", "maximize"), itertools.product((False, True), repeat=2))
def test_three_steps(amsgrad, maximize):
    from torch_npu.operators import JIT_EXTENSIONS

    step_function = JIT_EXTENSIONS["npu_apply_fused_adamw_v2"]["npu_apply_fused_adamw_v2"]
    g = seeded(amsgrad, maximize)
    start, *grads = (torch.randn(4, 3, generator=g) for _ in range(4))
    options = (3e-2, 0.9, 0.98, 0.1, 1e-8)
    param, first, second, largest = start.npu(), *(torch.zeros(4, 3).npu() for _ in range(3))
    for number, grad in enumerate(grads, 1):
        step = torch.tensor(number).npu()
        unused = largest if amsgrad else torch.Tensor([1])  # what MindSpeed passes
        step_function(param, grad.npu(), first, second, unused, step, *options, amsgrad, maximize)
    want = adamw(start.double(), [t.double() for t in grads], *options, amsgrad, maximize)
    for got, expected in zip((param, first, second), want, strict=False):
        assert_close(got, expected, roundings=4)
    if amsgrad:
        assert_close(largest, want[3], roundings=4)


def test_wrong_arguments_are_named():
    step_function = torch.ops.mindspeed_extension.npu_apply_fused_adamw_v2
    x, other = torch.ones(2).npu(), torch.ones(3).npu()
    rest = (1e-3, 0.9, 0.99, 0.0, 1e-8, False, False)
    with pytest.raises(RuntimeError, match=r"exp_avg_sq must have param's shape \(2,\), not \(3,\)"):
        step_function(x, x, x, other, None, torch.tensor(1).npu(), *rest)
    with pytest.raises(RuntimeError, match="state_step counts from 1, but is 0"):
        step_function(x, x, x, x, None, torch.tensor(0).npu(), *rest)
