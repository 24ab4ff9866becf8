"""A layer that adds a state of its own when weights are loaded."""

import torch


class MindSpeedTELayerNormColumnParallelLinear(torch.nn.Module):
    """Layer norm and linear layer in one."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self._register_load_state_dict_pre_hook(
            lambda state_dict, prefix, *args, **kwargs: state_dict.setdefault(f"{prefix}_extra_state")
        )

    def forward(self, x):
        """Scales."""
        return x * self.weight
