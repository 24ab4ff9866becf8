"""Megatron's SwiGLU functions by npu_swiglu, as MindSpeed replaces them.

Megatron calls `.apply(...)` of an autograd function; these classes offer the same call; npu_swiglu has its own
gradient. The argument fp8_input_store (keep the input for the backward pass in 8 bits) has no counterpart on the NPU.
"""

import torch_npu


def _swiglu(x, fp8_input_store):
    if fp8_input_store:
        raise ValueError("activation_func_fp8_input_store=True has no counterpart on the NPU; leave it False")
    return torch_npu.npu_swiglu(x, dim=-1)


class SwiGLUFunction:
    @staticmethod
    def apply(x, fp8_input_store=False):
        """x [tokens, 2 * n] -> silu(first half) * second half, [tokens, n]."""
        return _swiglu(x, fp8_input_store)


class BiasSwiGLUFunction:
    @staticmethod
    def apply(x, bias, fp8_input_store=False):
        """The same of x + bias."""
        return _swiglu(x + bias, fp8_input_store)


class WeightedSwiGLUFunction:
    @staticmethod
    def apply(x, weights, fp8_input_store=False):
        """The same times one weight per token, [tokens, 1], which may be more precise than x; result in x's dtype."""
        return (_swiglu(x, fp8_input_store) * weights).to(x.dtype)
