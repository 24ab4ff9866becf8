"""torch.histc on the npu: integers counted one by one, floats as on the CPU."""

import pytest
import torch

from tests.emulator.operators.comparison import seeded


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_integers_are_counted(dtype):
    experts = torch.randint(0, 9, (40,), generator=seeded(dtype)).to(dtype)
    counts = torch.histc(experts.npu(), bins=8, min=0, max=8)
    assert counts.dtype == dtype and counts.device.type == "npu"
    # bins of width 1; the last one takes its upper end, 8, too
    want = [int((experts == e).sum()) for e in range(7)] + [int((experts >= 7).sum())]
    assert counts.tolist() == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_are_counted_as_on_the_cpu(dtype):
    values = torch.randn(200, generator=seeded(dtype)).to(dtype)
    for limits in ({}, {"bins": 5}, {"bins": 7, "min": -1, "max": 2}):
        assert torch.equal(torch.histc(values.npu(), **limits).cpu(), torch.histc(values, **limits))
