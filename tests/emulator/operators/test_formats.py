"""Storage formats are remembered, values stay, and writes into a part of FRACTAL_NZ storage are counted."""

import gc

import pytest
import torch
import torch_npu
from torch_npu import trace
from torch_npu.operators import formats

NZ, ND = formats.FRACTAL_NZ, formats.ND


@pytest.fixture
def writes():
    """Partial writes since the start of the test."""
    before = trace.counter("nz_partial_writes")
    return lambda: trace.counter("nz_partial_writes") - before


def test_a_cast_copies_values_and_changes_the_format():
    x = torch.randn(4, 6).npu()
    y = torch_npu.npu_format_cast(x, NZ)
    assert torch_npu.get_npu_format(x) == ND and torch_npu.get_npu_format(y) == NZ
    assert torch.equal(x, y) and x.data_ptr() != y.data_ptr()
    assert torch_npu.npu_format_cast(y, NZ) is y or torch_npu.npu_format_cast(y, NZ).data_ptr() == y.data_ptr()
    back = torch_npu.npu_format_cast(y, ND)
    assert torch_npu.get_npu_format(back) == ND and torch.equal(back, x)


def test_a_cast_makes_a_transposed_weight_contiguous():
    x = torch.randn(4, 6).npu()
    y = torch_npu.npu_format_cast(x.t(), NZ)
    assert y.is_contiguous() and torch.equal(y, x.t())


def test_casts_after_another_tensor_and_in_place():
    nz = torch_npu.npu_format_cast(torch.ones(2, 2).npu(), NZ)
    x = torch.full((2, 2), 3.0).npu()
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(x, nz)) == NZ
    assert torch_npu.npu_format_cast_(x, NZ).data_ptr() == x.data_ptr()
    assert torch_npu.get_npu_format(x) == NZ and (x == 3).all()
    torch_npu.npu_format_cast_(x, torch.zeros(2, 2).npu())
    assert torch_npu.get_npu_format(x) == ND and (x == 0).all()


def test_a_cast_passes_the_gradient_on():
    x = torch.randn(3, 4).npu().requires_grad_()
    (torch_npu.npu_format_cast(x, NZ) * 2).sum().backward()
    assert (x.grad == 2).all()


def test_views_have_the_format_of_their_storage_and_it_ends_with_it():
    x = torch_npu.npu_format_cast(torch.ones(4, 4).npu(), NZ)
    assert torch_npu.get_npu_format(x[1:]) == NZ
    address = x.untyped_storage().data_ptr()
    assert address in formats._formats
    del x
    gc.collect()
    assert address not in formats._formats


def test_writes_into_parts_are_counted(writes):
    weight = torch_npu.npu_format_cast(torch.zeros(2, 4, 4).npu(), NZ)
    weight.copy_(torch.ones(2, 4, 4))
    weight[:] = 1
    assert writes() == 0
    weight[0].copy_(torch.full((4, 4), 2.0))
    assert writes() == 1
    weight.data[1, :2] = 3
    assert writes() == 2
    torch.nn.Parameter(weight, requires_grad=False).data[1].copy_(weight[0])
    assert writes() == 3
    assert weight[0].eq(2).all() and weight[1].eq(2).all()


def test_writes_into_parts_of_other_storage_are_not(writes):
    plain = torch.zeros(2, 4).npu()
    tiled = torch_npu.npu_format_cast(plain, NZ)
    plain[0].copy_(torch.ones(4))
    plain[1] = 1
    torch.zeros(4)[:2] = 1
    assert writes() == 0
    assert plain.eq(1).all() and tiled.eq(0).all()


def test_dynamo_traces_writes_as_before(writes):
    """vLLM compiles its model after the weights were cast."""
    nz = torch_npu.npu_format_cast(torch.zeros(2, 4).npu(), NZ)

    def function(x, y):
        x[:1] = y
        x[1:].copy_(y)
        return x + 1

    x, y = torch.zeros(2, 4).npu(), torch.ones(1, 4).npu()
    assert (torch.compile(function, backend="eager", fullgraph=True)(x, y) == 2).all()
    assert writes() == 0 and torch_npu.get_npu_format(nz) == NZ
    torch._dynamo.reset()


def test_an_unknown_format_is_named():
    with pytest.raises(RuntimeError, match=r"acl_format must be one of .*29 \(FRACTAL_NZ\), but is 77"):
        torch_npu.npu_format_cast(torch.ones(2, 2).npu(), 77)
