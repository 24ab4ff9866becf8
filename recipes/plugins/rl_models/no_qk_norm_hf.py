"""Hugging Face's modules for Qwen3-MoE with or without query and key norms. Importing it replaces transformers' own."""

import torch
from transformers.models.qwen3_moe import modeling_qwen3_moe as hf


def has_norms(config) -> bool:
    """Whether a model's config asks for the norms: all do that do not say otherwise."""
    return getattr(config, "qk_norm", True)


class Attention(hf.Qwen3MoeAttention):
    """transformers' attention, with the norms only where the config asks for them."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        if not has_norms(config):
            del self.q_norm, self.k_norm  # verl's converter copies the norms that a layer has

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **options):
        """[B, S, H] -> [B, S, H] and no attention weights."""
        if has_norms(self.config):
            return super().forward(hidden_states, position_embeddings, attention_mask, **options)
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (one(hidden_states).view(heads).transpose(1, 2) for one in projections)
        query, key = hf.apply_rotary_pos_emb(query, key, *position_embeddings)
        if (cache := options.get("past_key_values")) is not None:
            key, value = cache.update(key, value, self.layer_idx)
        causal = attention_mask is None and query.shape[2] > 1
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=causal, scale=self.scaling, enable_gqa=True
        )
        return self.o_proj(output.transpose(1, 2).flatten(2)), None


hf.Qwen3MoeAttention = Attention
