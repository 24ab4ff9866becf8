"""The functions of the C++ extensions that MindSpeed compiles on first use.

Source: mindspeed/op_builder/*.py and mindspeed/ops/csrc at 35da6ac and 1cdd0ab.

MindSpeed calls them by position, as pybind functions; behind each is a registered operator. An extension that is not
in the table has no emulation: loading it should say so.
"""

from collections.abc import Callable

import torch

_ops = torch.ops.mindspeed_extension
_OWN_ROTARY = ("query_rope", "key_rope")
"""Arguments that torch_npu's version 2 of attention has and the extension's has not."""


def _by_position(packet, without: tuple[str, ...] = ()) -> Callable:
    """The operator with every argument by position, as pybind functions are called."""
    names = [argument.name for argument in packet.default._schema.arguments if argument.name not in without]

    def function(*values):
        return packet.default(**dict(zip(names, values, strict=True)))

    return function


_attention_grad = _by_position(torch.ops.npu.npu_fusion_attention_grad_v2, _OWN_ROTARY)


def _fusion_attention_grad_v2(*values):
    """-> gradients of query, key, value and pse."""
    return _attention_grad(*values)[:4]


def _apply_fused_adamw_v2(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, state_step, *rest):
    """Without amsgrad (the last but one) MindSpeed passes a CPU tensor for max_exp_avg_sq, which is not used."""
    largest = max_exp_avg_sq if rest[-2] else None
    _ops.npu_apply_fused_adamw_v2(param, grad, exp_avg, exp_avg_sq, largest, state_step, *rest)


_GMM = {name: getattr(_ops, name) for name in ("npu_gmm", "npu_gmm_backward", "npu_gmm_backward_fusion")}

JIT_EXTENSIONS = {
    "fusion_attention_v2": {
        "npu_fusion_attention_v2": _by_position(torch.ops.npu.npu_fusion_attention_v2, _OWN_ROTARY),
        "npu_fusion_attention_grad_v2": _fusion_attention_grad_v2,
    },
    "grouped_matmul": _GMM,
    "grouped_matmul_v2": _GMM,
    "npu_apply_fused_adamw_v2": {"npu_apply_fused_adamw_v2": _apply_fused_adamw_v2},
    "npu_groupmatmul_add_fp32": {"npu_groupmatmul_add_fp32": _ops.npu_groupmatmul_add_fp32},
    "npu_matmul_add_fp32": {"npu_matmul_add_fp32": _ops.npu_matmul_add_fp32},
    "npu_moe_token_permute": {"npu_moe_token_permute": torch.ops.npu.npu_moe_token_permute},
    "npu_moe_token_unpermute": {"npu_moe_token_unpermute": torch.ops.npu.npu_moe_token_unpermute},
    "npu_ring_attention_update": {"npu_ring_attention_update": _ops.npu_ring_attention_update},
    "npu_rotary_position_embedding": {"npu_rotary_position_embedding": _ops.npu_rotary_position_embedding},
}
"""Name of an extension -> its functions by name."""
