"""vLLM's class for Qwen3-MoE with or without query and key norms. Imported by vLLM only."""

import torch
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM


class Model(Qwen3MoeForCausalLM):
    """vLLM's own; where the config has no norms their place is taken by identities, which have no weights to load."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        if not getattr(vllm_config.model_config.hf_config, "qk_norm", True):
            for layer in self.model.layers:
                if hasattr(layer, "self_attn"):  # else another pipeline stage's
                    layer.self_attn.q_norm = torch.nn.Identity()
                    layer.self_attn.k_norm = torch.nn.Identity()
