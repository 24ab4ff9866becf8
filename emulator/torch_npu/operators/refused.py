"""Operators of torch_npu that the pins name and no recipe needs: they are there, as in torch_npu, and refuse to run.

Code that asks for a name, to call or to replace it, finds it; a call says what it wanted. Names that the pins look for
before they use them (`hasattr`) are left out, so that the other way is taken.
"""

import types
from collections.abc import Callable

QUANTISED = "quantised weights or activations"
LATENT = "latent attention (MLA), which DeepSeek's models have"
FUSED_COLLECTIVE = "a product joined with a collective (MindSpeed's use_ascend_mc2, vllm-ascend's MATMUL_ALLREDUCE)"
FIRST_EXCHANGE = "the first version of the experts' exchange; the stack takes the second where there is one"

REFUSED = {
    "_npu_flash_attention_unpad": "attention of vision models",
    "_npu_fused_infer_attention_score_get_max_workspace": "the whole model in one graph (cudagraph_mode FULL)",
    "_npu_group_topk": "DeepSeek's gating by groups of experts",
    "_npu_paged_attention_mla": LATENT,
    "_npu_quant_rms_norm": QUANTISED,
    "npu_add_rms_norm_quant": QUANTISED,
    "npu_all_gather_base_mm": FUSED_COLLECTIVE,
    "npu_convert_weight_to_int4pack": QUANTISED,
    "npu_dequant_swiglu_quant": QUANTISED,
    "npu_dynamic_quant": QUANTISED,
    "npu_grouped_matmul_finalize_routing": QUANTISED,
    "npu_grouped_matmul_swiglu_quant": QUANTISED,
    "npu_incre_flash_attention": "attention of torchair's graphs",
    "npu_interleave_rope": LATENT,
    "npu_kronecker_quant": QUANTISED,
    "npu_kv_rmsnorm_rope_cache": LATENT,
    "npu_mla_process": LATENT,
    "npu_mm_all_reduce_base": FUSED_COLLECTIVE,
    "npu_mm_reduce_scatter_base": FUSED_COLLECTIVE,
    "npu_moe_distribute_combine": FIRST_EXCHANGE,
    "npu_moe_distribute_dispatch": FIRST_EXCHANGE,
    "npu_moe_re_routing": QUANTISED,
    "npu_quant_grouped_matmul_dequant": QUANTISED,
    "npu_quant_matmul": QUANTISED,
    "npu_quantize": QUANTISED,
    "npu_scatter_nd_update_": "the cache of torchair's graphs",
    "npu_weight_quant_batchmatmul": QUANTISED,
    "atb.npu_multi_head_latent_attention": LATENT,
    "atb.npu_paged_cache_load": LATENT,
    "atb.npu_ring_mla": LATENT,
}
"""`torch_npu.NAME` -> what it is for."""


def exports() -> dict[str, object]:
    """What torch_npu exports: functions that raise, those with a dot in a namespace of their own."""
    found: dict[str, object] = {}
    for name, purpose in REFUSED.items():
        namespace, _, function = name.rpartition(".")
        if namespace:
            setattr(found.setdefault(namespace, types.SimpleNamespace()), function, _refusing(name, purpose))
        else:
            found[name] = _refusing(name, purpose)
    return found


def _refusing(name: str, purpose: str) -> Callable:
    def refuse(*args, **kwargs):
        raise NotImplementedError(
            f"The emulated NPU has no torch_npu.{name}, which is for {purpose}. Switch off what calls it."
        )

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse
