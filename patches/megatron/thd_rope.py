"""Rotary embedding of packed sequences in one call."""

from patches.patch import Added, Edits, Patch
from patches.shapes import body, imports

PATCH = Patch(
    id="megatron/thd-rope",
    problem="",
    matrices=("performance", "commercial"),
    why="a loop turns one packed sequence at a time, after waiting for the device to know their lengths: 28 operators "
    "a sequence, for queries and keys of each layer, forward and backward",
    upstream="core_v0.15.0 gathers the frequencies first, and still waits",
    targets=(
        Edits(
            "megatron.core.models.common.embeddings.rope_utils",
            imports("from megatron.core.models.common.embeddings import rl_thd_rope"),
            # MindSpeed replaces the global _apply_rotary_pos_emb_bshd by its fused operator (35da6ac and 1cdd0ab,
            # mindspeed/features_manager/fusions/fused_rope.py:36): it has to be looked up at each call, here
            body(
                "_apply_rotary_pos_emb_thd",
                """
                return _apply_rotary_pos_emb_bshd(
                    t.unsqueeze(1),
                    rl_thd_rope.gather(freqs, cu_seqlens, t.size(0)),
                    rotary_interleaved=rotary_interleaved,
                    multi_latent_attention=multi_latent_attention,
                    mscale=mscale,
                ).squeeze(1)
                """,
                "ece3ddc5cc96f566",
            ),
        ),
        Added("megatron.core.models.common.embeddings.rl_thd_rope"),
    ),
)
