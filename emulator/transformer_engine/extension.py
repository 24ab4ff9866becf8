"""What is registered as megatron.core.extensions.transformer_engine: what megatron-core 0.12.1 imports.

None is Megatron's own way to say that a fused form is missing: it then takes its plain path, or raises when the
configuration asks for the fused one.
"""

from npu_transformer_engine.attention import TEDotProductAttention
from npu_transformer_engine.grouped_linear import (
    TEColumnParallelGroupedLinear,
    TEGroupedLinear,
    TERowParallelGroupedLinear,
)
from npu_transformer_engine.linear import (
    TEColumnParallelLinear,
    TELayerNormColumnParallelLinear,
    TELinear,
    TERowParallelLinear,
)
from npu_transformer_engine.norm import TENorm
from npu_transformer_engine.rotary import fused_apply_rotary_pos_emb, fused_apply_rotary_pos_emb_thd

__all__ = [
    "TEColumnParallelGroupedLinear",
    "TEColumnParallelLinear",
    "TEDotProductAttention",
    "TEGroupedLinear",
    "TELayerNormColumnParallelLinear",
    "TELinear",
    "TENorm",
    "TERowParallelGroupedLinear",
    "TERowParallelLinear",
    "fused_apply_rotary_pos_emb",
    "fused_apply_rotary_pos_emb_thd",
]

SplitAlongDim = None
Fp8Padding = Fp8Unpadding = None
fused_permute = fused_permute_with_probs = fused_unpermute = None
fused_sort_chunks_by_index = fused_sort_chunks_by_index_with_probs = None
get_cpu_offload_context = None
te_parallel_cross_entropy = None


class _NeedsTransformerEngine:
    """A name that Megatron imports but uses only for fp8 or CUDA graphs."""

    def __init__(self, *arguments, **keywords):
        raise NotImplementedError(
            f"{type(self).__name__} needs TransformerEngine itself, which is not there on an NPU; "
            "switch off fp8 and CUDA graphs"
        )


class TEDelayedScaling(_NeedsTransformerEngine):
    pass


class TECudaRNGStatesTracker(_NeedsTransformerEngine):
    pass


class te_checkpoint(_NeedsTransformerEngine):
    pass


def condition_init_method(config, init_method):
    """The init method, or nothing when the configuration loads all weights anyway (perform_initialization False)."""
    return init_method if config.perform_initialization else (lambda weight: None)
