"""The operators of LoRA in vllm-ascend's compiled module (15b2e5c, csrc/kernels/{bgmv,sgmv}_{shrink,expand}.cpp).

bgmv_*: one adapter a token; sgmv_*: one a sequence. A negative number of an adapter leaves the token's row as it is.
"""

import torch

from .registry import operator


def _shrink(x, weight, adapters, y, scale):
    """Row by row y = scale * x @ A.T. x [T, H], weight [adapters, (1,) R, H], y [T, R]."""
    used = adapters >= 0
    y[used] = (scale * _products(x, weight, adapters)[used]).to(y.dtype)


def _expand(x, weight, adapters, y, slice_offset, slice_size):
    """y's columns from slice_offset += x @ B.T. x [T, R], weight [adapters, (1,) slice_size, R], y [T, columns]."""
    columns = slice(slice_offset, slice_offset + slice_size)
    used = adapters >= 0
    y[used, columns] = (y[used, columns].float() + _products(x, weight, adapters)[used]).to(y.dtype)
    return y


def _products(x, weight, adapters):
    """Each token's product with the weight of its adapter, in float32; of adapter 0 where it has none."""
    weight = weight.flatten(0, -3)[adapters.clamp(min=0)].float()
    return torch.einsum("th,trh->tr", x.float(), weight)


def _of_tokens(adapters, lengths, tokens):
    """The adapter of every token, from those of the sequences; none for tokens after the last."""
    repeated = adapters.repeat_interleave(lengths)
    return torch.nn.functional.pad(repeated, (0, tokens - len(repeated)), value=-1)


def _nothing(*_):
    return None


def _written(position):
    return lambda *values: values[position]


@operator(
    "bgmv_shrink(Tensor x, Tensor weight, Tensor indices, Tensor(a!) y, float scale) -> ()",
    meta=_nothing,
    namespace="_C_ascend",
    export=False,
)
def bgmv_shrink(x, weight, indices, y, scale):
    """See _shrink."""
    _shrink(x, weight, indices, y, scale)


@operator(
    "bgmv_expand(Tensor x, Tensor weight, Tensor indices, Tensor(a!) y, int slice_offset, int slice_size) "
    "-> Tensor(a!)",
    meta=_written(3),
    namespace="_C_ascend",
    export=False,
)
def bgmv_expand(x, weight, indices, y, slice_offset, slice_size):
    """See _expand."""
    return _expand(x, weight, indices, y, slice_offset, slice_size)


@operator(
    "sgmv_shrink(Tensor x, Tensor weight, Tensor lora_indices, Tensor seq_len, Tensor(a!) y, float scale) -> ()",
    meta=_nothing,
    namespace="_C_ascend",
    export=False,
)
def sgmv_shrink(x, weight, lora_indices, seq_len, y, scale):
    """See _shrink; lora_indices and seq_len by sequence."""
    _shrink(x, weight, _of_tokens(lora_indices, seq_len, len(x)), y, scale)


@operator(
    "sgmv_expand(Tensor x, Tensor weight, Tensor lora_indices, Tensor seq_len, Tensor(a!) y, int slice_offset, "
    "int slice_size) -> Tensor(a!)",
    meta=_written(4),
    namespace="_C_ascend",
    export=False,
)
def sgmv_expand(x, weight, lora_indices, seq_len, y, slice_offset, slice_size):
    """See _expand; lora_indices and seq_len by sequence."""
    return _expand(x, weight, _of_tokens(lora_indices, seq_len, len(x)), y, slice_offset, slice_size)
