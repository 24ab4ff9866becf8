"""Experts' weights reloaded in the layout that they have."""

from patches.patch import Edits, Patch
from patches.shapes import replace

PATCH = Patch(
    id="vllm-ascend/moe-layout",
    problem="F10",
    matrices=("performance",),
    why="reloading guesses from shapes whether experts are stored transposed: with hidden equal to an expert's "
    "width on a rank, or twice it, weights are wrong without an error",
    upstream="none at 15b2e5c or v0.11.0rc1; 1de16ea does not transpose",
    targets=(
        Edits(
            "vllm_ascend.ops.common_fused_moe",
            replace(
                "AscendFusedMoE.transpose_weight",
                """
                if loaded_weight.shape[1] != expert_data.shape[1] and loaded_weight.shape[0] != expert_data.shape[0]:
                    shard_dim = int(not shard_dim)
                    loaded_weight = loaded_weight.transpose(0, 1).contiguous()
                """,
                """
                # the method notes whether it still has to transpose; methods for quantized weights note nothing
                as_loaded = getattr(self.quant_method, "transpose", None)
                if as_loaded is None:
                    ...
                elif not as_loaded:
                    shard_dim = int(not shard_dim)
                    loaded_weight = loaded_weight.transpose(0, 1).contiguous()
                """,
            ),
        ),
    ),
)
