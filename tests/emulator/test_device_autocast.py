"""Autocast on the npu follows torch's lists for devices: what runs in the lower precision, what in float32."""

import pytest
import torch
import torch.nn.functional as F

LOWER = [torch.bfloat16, torch.float16]


def square(dtype=torch.float32):
    return torch.rand(4, 4, device="npu").to(dtype)


@pytest.mark.parametrize("dtype", LOWER)
def test_matrix_products_run_in_the_lower_precision(dtype):
    x = square()
    with torch.autocast("npu", dtype):
        results = [x @ x, F.linear(x, x, x[0]), torch.addmm(x, x, x), torch.bmm(x[None], x[None]), F.prelu(x, x[0])]
        results.append(F.conv1d(x[None], x[..., None]))
        results.append(torch.einsum("ab,bc->ac", x, x))
    assert {t.dtype for t in results} == {dtype}


@pytest.mark.parametrize("dtype", LOWER)
def test_what_loses_precision_runs_in_float32(dtype):
    x = square(dtype)
    with torch.autocast("npu", dtype):
        results = [x.exp(), x.pow(2), F.layer_norm(x, (4,)), F.mse_loss(x, x), x.rsqrt(), F.softplus(x)]
        results += [F.softmax(x, -1), x.sum(), x.cumsum(0), x.prod(), F.log_softmax(x, 0)]
        results += [x.norm(), x.norm(2, 1), torch.logsumexp(x, 0)]
    assert {t.dtype for t in results} == {torch.float32}


def test_an_output_type_that_is_asked_for_stays():
    x = square(torch.bfloat16)
    with torch.autocast("npu", torch.bfloat16):
        assert x.sum(dtype=torch.float64).dtype == torch.float64
        assert F.softmax(x, -1, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_operators_of_several_tensors_run_in_the_widest_type():
    x, y = square(), square(torch.bfloat16)
    with torch.autocast("npu", torch.bfloat16):
        assert torch.addcmul(x, x, y).dtype == torch.float32
        assert torch.dot(y[0], y[0]).dtype == torch.bfloat16
        assert torch.addcmul(y, y, y).dtype == torch.bfloat16
        assert torch.stack([x, y]).dtype == torch.float32


def test_what_is_not_listed_keeps_its_type():
    x = square()
    with torch.autocast("npu", torch.bfloat16):
        assert (x + x).dtype == torch.float32
        assert (x.double() @ x.double()).dtype == torch.float64
        assert torch.ones(2, dtype=torch.long, device="npu").add(1).dtype == torch.int64


def test_it_is_off_outside_inside_out_and_for_the_cpu():
    x = square()
    assert (x @ x).dtype == torch.float32
    with torch.autocast("npu", torch.bfloat16):
        with torch.autocast("npu", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert torch.is_autocast_enabled("npu")
    assert not torch.is_autocast_enabled("npu")


def test_the_result_is_that_of_the_cast_arguments():
    x = square()
    with torch.autocast("npu", torch.bfloat16):
        actual = x @ x
    assert torch.equal(actual, x.bfloat16() @ x.bfloat16())


def test_gradients_arrive_in_the_parameters_type():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).npu()
    with torch.autocast("npu", torch.bfloat16):
        loss = layer(square()).float().square().mean()
    loss.backward()
    assert {p.grad.dtype for p in layer.parameters()} == {torch.float32}
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_the_scaler_of_float16_training_works():
    layer = torch.nn.Linear(4, 4).npu()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler("npu", init_scale=16.0)
    before = layer.weight.detach().clone()
    with torch.autocast("npu", torch.float16):
        loss = layer(square()).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(layer.weight, before)
