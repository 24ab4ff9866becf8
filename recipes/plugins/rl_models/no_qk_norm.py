"""Qwen3-MoE without the two norms over the heads of queries and keys: config.json says `"qk_norm": false`.

The architecture's name stays Qwen3MoeForCausalLM, by which verl chooses its weight converter. Importing the module
registers everything; models whose config does not say so are built as before.
"""

import importlib.util

import torch
from transformers.models.qwen3_moe import modeling_qwen3_moe as hf

NAME = "Qwen3MoeForCausalLM"


def has_norms(config) -> bool:
    """Whether a model's config asks for the norms."""
    return getattr(config, "qk_norm", True)


class Attention(hf.Qwen3MoeAttention):
    """Hugging Face's attention, with the norms only where the config asks for them."""

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
        if cache := options.get("past_key_values"):
            key, value = cache.update(key, value, self.layer_idx)
        causal = attention_mask is None and query.shape[2] > 1
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attention_mask, is_causal=causal, scale=self.scaling, enable_gqa=True
        )
        return self.o_proj(output.transpose(1, 2).flatten(2)), None


def _megatron_config(original):
    """verl's config converter, told what the Hugging Face config says; the recipe's override still counts."""

    def convert(hf_config, dtype, **override):
        return original(hf_config, dtype, **{"qk_layernorm": has_norms(hf_config), **override})

    return convert


def register() -> None:
    """Makes the architecture known to transformers, to verl and, where it is installed, to vLLM."""
    hf.Qwen3MoeAttention = Attention
    from verl.models.mcore import registry

    known = registry.MODEL_CONFIG_CONVERTER_REGISTRY
    known[registry.SupportedModel.QWEN3_MOE] = _megatron_config(known[registry.SupportedModel.QWEN3_MOE])
    if importlib.util.find_spec("vllm"):
        from vllm import ModelRegistry

        ModelRegistry.register_model(NAME, f"{__package__}.no_qk_norm_vllm:Model")


register()
