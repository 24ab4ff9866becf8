"""Normalisation under TransformerEngine's parameter names, computed by npu_rms_norm as MindSpeed does."""

import torch
import torch_npu
from torch.nn.parameter import Parameter


def parameter_device(config):
    """Device on which a module creates its parameters: the current NPU, unless the config asks for the host or meta."""
    if config.use_cpu_initialization:
        return torch.device("cpu")
    if config.init_model_with_meta_device:
        return torch.device("meta")
    return torch.device("npu", torch.npu.current_device())


def norm_parameters(config, size: int) -> dict[str, Parameter]:
    """Weight, and for LayerNorm bias, of a norm over the last `size` values; dtype of the parameters, initial identity.

    With sequence parallelism each tensor-parallel rank sees a part of the tokens only, so Megatron must sum the
    gradients over these ranks: it looks for the attribute `sequence_parallel`.
    """
    if config.normalization not in ("RMSNorm", "LayerNorm"):
        raise ValueError(f"normalization must be RMSNorm or LayerNorm, found {config.normalization!r}")
    place = {"device": parameter_device(config), "dtype": config.params_dtype}
    start = torch.zeros if config.layernorm_zero_centered_gamma else torch.ones
    parameters = {"weight": Parameter(start(size, **place))}
    if config.normalization == "LayerNorm":
        parameters["bias"] = Parameter(torch.zeros(size, **place))
    for parameter in parameters.values():
        parameter.sequence_parallel = config.sequence_parallel
    return parameters


def normalise(x, weight, bias, eps: float, zero_centered: bool):
    """RMSNorm (bias None) or LayerNorm of x over its last dimension; result in x's dtype."""
    if zero_centered:
        weight = weight + 1
    if bias is None:
        return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


class TENorm(torch.nn.Module):
    """RMSNorm or LayerNorm as the config says; parameters `weight` (and `bias`) of `hidden_size` values."""

    def __init__(self, config, hidden_size: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.zero_centered = config.layernorm_zero_centered_gamma
        self.bias = None
        for name, parameter in norm_parameters(config, hidden_size).items():
            setattr(self, name, parameter)

    def forward(self, x):
        return normalise(x, self.weight, self.bias, self.eps, self.zero_centered)
