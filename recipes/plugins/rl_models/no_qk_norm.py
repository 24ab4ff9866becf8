"""Qwen3-MoE without the two norms over the heads of queries and keys: config.json says `"qk_norm": false`.

The architecture's name stays Qwen3MoeForCausalLM, by which verl chooses its weight converter. Importing the module
makes it known to transformers, to verl and, where it is installed, to vLLM; models whose config does not say so are
built as before.
"""

import importlib.util

from verl.models.mcore import registry

from rl_models.no_qk_norm_hf import has_norms


def _megatron_config(original):
    """verl's config converter, told what the Hugging Face config says; the recipe's override still counts."""

    def convert(hf_config, dtype, **override):
        return original(hf_config, dtype, **{"qk_layernorm": has_norms(hf_config), **override})

    return convert


_known = registry.MODEL_CONFIG_CONVERTER_REGISTRY
_known[registry.SupportedModel.QWEN3_MOE] = _megatron_config(_known[registry.SupportedModel.QWEN3_MOE])
if importlib.util.find_spec("vllm"):
    from vllm import ModelRegistry

    ModelRegistry.register_model("Qwen3MoeForCausalLM", "rl_models.no_qk_norm_vllm:Model")
