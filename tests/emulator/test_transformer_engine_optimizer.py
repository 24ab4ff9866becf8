"""FusedAdam against torch's AdamW, and its contract with Megatron: the step number lies in the group."""

import pytest
import torch
from npu_transformer_engine.optimizer import FusedAdam

SETTINGS = {"lr": 3e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def parameters(device, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in ((7, 5), (11,), ())]


def gradients(some, step):
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in some:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)


def train(some, optimizer, steps, first=0):
    for step in range(first, first + steps):
        gradients(some, step)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_equals_torchs_adamw(device):
    mine, torchs = parameters(device), parameters("cpu")
    train(mine, FusedAdam(mine, **SETTINGS), 20)
    train(torchs, torch.optim.AdamW(torchs, **SETTINGS), 20)
    for one, other in zip(mine, torchs, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-6)


def test_bias_correction_can_be_off():
    (parameter,) = some = [torch.zeros(1, requires_grad=True)]
    parameter.grad = torch.ones(1)
    FusedAdam(some, lr=1.0, betas=(0.9, 0.99), eps=0.0, bias_correction=False).step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.1 / 0.01**0.5]))


def test_step_lies_in_the_group_and_not_with_the_parameters():
    some = parameters("cpu")
    optimizer = train(some, FusedAdam(some, **SETTINGS), 3)
    assert [group["step"] for group in optimizer.param_groups] == [3]
    assert {frozenset(state) for state in optimizer.state.values()} == {frozenset({"exp_avg", "exp_avg_sq"})}


def test_resumes_bit_for_bit():
    unbroken, broken = parameters("npu"), parameters("npu")
    train(unbroken, FusedAdam(unbroken, **SETTINGS), 6)
    saved = train(broken, FusedAdam(broken, **SETTINGS), 3).state_dict()
    resumed = FusedAdam(broken, **SETTINGS)
    resumed.load_state_dict(saved)
    train(broken, resumed, 3, first=3)
    assert all(map(torch.equal, unbroken, broken))


def test_parameters_without_gradient_stay():
    some = parameters("cpu")
    optimizer = FusedAdam(some, **SETTINGS)
    gradients(some[:1], 0)
    before = some[1].detach().clone()
    optimizer.step()
    assert torch.equal(some[1], before) and list(optimizer.state) == some[:1]


def test_takes_no_closure():
    with pytest.raises(ValueError, match="takes no closure"):
        FusedAdam(parameters("cpu")).step(lambda: 0)
