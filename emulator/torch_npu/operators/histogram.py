"""aten::histc of integers, which an NPU has and torch's CPU kernel has not.

op-plugin 691bf15 (HistcKernelNpu.cpp) takes int32, float16 and float32 and gives the input's type; vllm-ascend 15b2e5c
counts the tokens of each expert with it (ops/moe/token_dispatcher.py). The other types stay as the CPU has them.
"""

import warnings

import npu_device
import torch

from .registry import plain_torch

_library = torch.library.Library("aten", "IMPL")


def histc(self, bins=100, min=0, max=0):
    """Counts of the values in `bins` equal parts of [min, max], in the type of the values."""
    npu_device.note_uses("aten::histc", [self], [])
    with plain_torch():
        values = npu_device.alias(self)
        # double holds every int32 exactly; the CPU kernel knows no integers
        counts = torch.histc(values if values.is_floating_point() else values.double(), bins, min, max)
        result = npu_device.wrap(counts.to(values.dtype), self.device.index)
    npu_device.note_uses("aten::histc", [], [result])
    return result


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Warning only once for all operators")
    _library.impl("histc", histc, "PrivateUse1")
