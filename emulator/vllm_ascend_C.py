"""Stand-in for vllm-ascend's compiled module vllm_ascend_C: its operators and the memory allocator of sleep mode.

Schemas as in csrc/torch_binding.cpp at 15b2e5c (the `performance` matrix). Those of LoRA are there because
vllm_ascend.meta_registration, which is imported together with this module, wants them to exist. mla_preprocess
(DeepSeek) is left out: calling it says that the operator does not exist.
"""

import torch
from torch_npu.npu.mem_pool import init_module  # noqa: F401
from torch_npu.npu.mem_pool import remap as python_create_and_map  # noqa: F401
from torch_npu.npu.mem_pool import unmap as python_unmap_and_release  # noqa: F401
from torch_npu.operators import lora  # noqa: F401
from torch_npu.operators.registry import operator


@operator("weak_ref_tensor(Tensor input) -> Tensor", namespace="_C_ascend", on_device=True, export=False)
def weak_ref_tensor(input):
    """The tensor without a hold on its memory; here it keeps the memory: nothing else would free it safely."""
    return input.detach()


def _rotary_shapes(positions, query, key, head_size, cos_sin_cache, is_neox):
    tokens = positions.numel()
    return tuple(torch.empty_like(x).view(tokens, x.numel() // tokens // head_size, head_size) for x in (query, key))


@operator(
    "rotary_embedding(Tensor positions, Tensor query, Tensor key, int head_size, Tensor cos_sin_cache, bool is_neox) "
    "-> (Tensor, Tensor)",
    meta=_rotary_shapes,
    namespace="_C_ascend",
    export=False,
)
def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotate query and key [tokens, heads * head_size] by their positions.

    cos_sin_cache: [positions, rotary size], cosines then sines. Returns both as [tokens, heads, head_size]. float16 is
    computed in float16 and rounds at every step, bfloat16 in float32 (csrc/kernels/utils.h, AccType).
    """
    dtype = torch.float32 if query.dtype == torch.bfloat16 else query.dtype
    cos, sin = cos_sin_cache.index_select(0, positions.flatten()).to(dtype).unsqueeze(1).chunk(2, -1)
    size = cos_sin_cache.shape[-1]
    results = []
    for x in (query, key):
        y = x.reshape(positions.numel(), -1, head_size).clone()
        y[..., :size] = _rotated(y[..., :size].to(dtype), cos, sin, is_neox)
        results.append(y)
    return tuple(results)


def _rotated(x, cos, sin, is_neox):
    """Pairs are (i, i + size / 2) in NeoX style, (2i, 2i + 1) otherwise."""
    a, b = x.chunk(2, -1) if is_neox else (x[..., ::2], x[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(pair, -1) if is_neox else torch.stack(pair, -1).flatten(-2)


def _mask_shapes(input, *bounds):
    return torch.empty_like(input), torch.empty_like(input, dtype=torch.bool)


@operator(
    "get_masked_input_and_mask(Tensor input, int org_vocab_start_index, int org_vocab_end_index, "
    "int num_org_vocab_padding, int added_vocab_start_index, int added_vocab_end_index) -> (Tensor, Tensor)",
    meta=_mask_shapes,
    namespace="_C_ascend",
    export=False,
)
def get_masked_input_and_mask(
    input,
    org_vocab_start_index,
    org_vocab_end_index,
    num_org_vocab_padding,
    added_vocab_start_index,
    added_vocab_end_index,
):
    """Token ids as rows of this rank's part of a vocabulary-parallel embedding (foreign ones 0); which are foreign."""
    original = (input >= org_vocab_start_index) & (input < org_vocab_end_index)
    added = (input >= added_vocab_start_index) & (input < added_vocab_end_index)
    rows = org_vocab_end_index - org_vocab_start_index + num_org_vocab_padding
    offset = original * org_vocab_start_index + added * (added_vocab_start_index - rows)
    own = original | added
    return (own * (input - offset)).to(input.dtype), ~own
