"""Linear layers under TransformerEngine's names: Megatron's own parallel layers, and norm + linear in one module.

Megatron's layers already have TransformerEngine's parameter names and sharded state (`weight`, `bias`, an empty
`_extra_state`); what differs is what TransformerEngine refuses, and the norm inside TELayerNormColumnParallelLinear.
"""

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_data_parallel_rng_tracker_name
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch.nn.parameter import Parameter

from .norm import norm_parameters, normalise, parameter_device


def refuse(layer, **unsupported):
    """ValueError for what TransformerEngine's layers do not take, so that a spec fails here as it would there."""
    for name, given in unsupported.items():
        if given:
            raise ValueError(
                f"{type(layer).__name__} supports {name}=False only, found {given!r}; change the layer spec"
            )


class TELinear(torch.nn.Module):
    """Linear layer whose weight is the same on all tensor-parallel ranks (parallel_mode "duplicated")."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        parallel_mode: str | None,
        config,
        init_method,
        bias: bool,
        skip_bias_add: bool,
        skip_weight_param_allocation: bool = False,
        tp_comm_buffer_name: str | None = None,
        is_expert: bool = False,
    ):
        super().__init__()
        if parallel_mode != "duplicated":
            raise ValueError(
                f"TELinear is for parallel_mode='duplicated', found {parallel_mode!r}; "
                "use TEColumnParallelLinear or TERowParallelLinear"
            )
        refuse(self, skip_weight_param_allocation=skip_weight_param_allocation, is_expert=is_expert)
        place = {"device": parameter_device(config), "dtype": config.params_dtype}
        self.skip_bias_add = skip_bias_add
        self.weight = Parameter(torch.empty(output_size, input_size, **place))
        self.bias = Parameter(torch.zeros(output_size, **place)) if bias else None
        if config.perform_initialization:
            with get_cuda_rng_tracker().fork(get_data_parallel_rng_tracker_name()):
                init_method(self.weight)
        for parameter in self.parameters():
            parameter.allreduce = True
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, x):
        bias = None if self.skip_bias_add else self.bias
        return torch.nn.functional.linear(x, self.weight, bias), self.bias if self.skip_bias_add else None

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True), prefix, None, sharded_offsets
        )


class TEColumnParallelLinear(ColumnParallelLinear):
    """Weight [output / tp, input]; Megatron's layer without gathering of the output."""

    def __init__(self, input_size: int, output_size: int, *, gather_output: bool = False, **arguments):
        refuse(self, gather_output=gather_output)
        super().__init__(input_size, output_size, gather_output=False, **arguments)


class TERowParallelLinear(RowParallelLinear):
    """Weight [output, input / tp]; Megatron's layer for inputs that are split already."""

    def __init__(self, input_size: int, output_size: int, *, input_is_parallel: bool = True, **arguments):
        refuse(self, scattering_of_the_input=not input_is_parallel)
        super().__init__(input_size, output_size, input_is_parallel=True, **arguments)


class TELayerNormColumnParallelLinear(TEColumnParallelLinear):
    """Norm of the input, then the column-parallel linear layer; the norm's weight is `layer_norm_weight`.

    The norm comes before the gathering of the sequence, so with sequence parallelism a rank normalises its tokens only.
    """

    def __init__(self, input_size: int, output_size: int, *, config, is_expert: bool = False, **arguments):
        refuse(self, is_expert=is_expert)
        super().__init__(input_size, output_size, config=config, is_expert=False, **arguments)
        self.layer_norm_bias = None
        for name, parameter in norm_parameters(config, input_size).items():
            setattr(self, f"layer_norm_{name}", parameter)

    def forward(self, x, *arguments, **keywords):
        normed = normalise(
            x,
            self.layer_norm_weight,
            self.layer_norm_bias,
            self.config.layernorm_epsilon,
            self.config.layernorm_zero_centered_gamma,
        )
        return super().forward(normed, *arguments, **keywords)
