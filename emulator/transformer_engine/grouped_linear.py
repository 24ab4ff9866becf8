"""The experts' linear layers: one weight per expert (`weight0`, `weight1`, ...), multiplied by npu_grouped_matmul."""

import warnings

import torch
import torch_npu
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.tensor_parallel.layers import (
    _initialize_affine_weight_cpu,
    _initialize_affine_weight_gpu,
    set_tensor_model_parallel_attributes,
)
from megatron.core.tensor_parallel.utils import divide
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch.nn.parameter import Parameter

from .norm import parameter_device

# npu_grouped_matmul's words: split the rows (group_type 0) or the reduced dimension (2); one output tensor
# (split_item 3); group_list holds sizes, not ends (group_list_type 1).
ROWS, REDUCED, ONE_OUTPUT, SIZES = 0, 2, 3, 1


def grouped_matmul(x, weights, sizes, group_type: int):
    """One output tensor of torch_npu.npu_grouped_matmul for one input tensor and a list of weights."""
    return torch_npu.npu_grouped_matmul(
        [x], weights, bias=None, group_list=sizes, split_item=ONE_OUTPUT, group_type=group_type, group_list_type=SIZES
    )[0]


class GroupedMatmul(torch.autograd.Function):
    """y = x @ w.T per expert: x [tokens, in] sorted by expert, sizes int64 [experts] on the NPU, weights [out, in].

    The operator has no gradient of its own, so both directions are spelled out: the gradient of x is again split by
    rows, that of the weights [experts, out, in] along the reduced dimension, the tokens.
    """

    @staticmethod
    def forward(ctx, x, sizes, *weights):
        ctx.save_for_backward(x, sizes, *weights)
        return grouped_matmul(x, [w.T for w in weights], sizes, ROWS)

    @staticmethod
    def backward(ctx, dy):
        x, sizes, *weights = ctx.saved_tensors
        dx, dw = None, [None] * len(weights)
        if ctx.needs_input_grad[0]:
            dx = grouped_matmul(dy, weights, sizes, ROWS)
        if any(ctx.needs_input_grad[2:]):
            dw = grouped_matmul(dy.T, [x], sizes, REDUCED).unbind()
        return dx, None, *dw


def warn_of_partial_gradients(config):
    """Megatron-core 0.12.1 has no reduction for one combination, with TransformerEngine and MindSpeed as well.

    Replicated experts under tensor parallelism each see their rank's part of the sequence; without expert parallelism
    their gradients are summed over the data-parallel ranks only, so the replicas drift apart.
    """
    sizes = config.tensor_model_parallel_size, config.expert_model_parallel_size, config.expert_tensor_parallel_size
    if sizes[0] > 1 and sizes[1:] == (1, 1):
        warnings.warn(
            f"tensor_model_parallel_size={sizes[0]}, expert_model_parallel_size=1, expert_tensor_parallel_size=1: "
            "Megatron-core 0.12.1 does not sum the experts' gradients over the tensor-parallel ranks, the experts' "
            "copies drift apart. Set one of the two expert sizes above 1.",
            stacklevel=3,
        )


class TEGroupedLinear(torch.nn.Module):
    """`num_gemms` linear layers of one shape, one per local expert, split over the expert tensor-parallel ranks.

    `partition_dim` is 0 for column-parallel weights (the output is split) and 1 for row-parallel ones (the input).
    Communication between the ranks is the token dispatcher's.
    """

    partition_dim: int

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config,
        init_method,
        bias: bool,
        skip_bias_add: bool,
        is_expert: bool,
        tp_comm_buffer_name: str | None = None,
    ):
        super().__init__()
        if bias or not is_expert:
            raise ValueError(
                f"{type(self).__name__} is for experts without bias, found bias={bias}, is_expert={is_expert}; "
                "set add_bias_linear=False"
            )
        warn_of_partial_gradients(config)
        self.config, self.num_gemms = config, num_gemms
        full_shape = [output_size, input_size]
        for index in range(num_gemms):
            self.register_parameter(f"weight{index}", self._new_weight(full_shape, init_method))

    def _new_weight(self, full_shape, init_method):
        config, dim, parts = self.config, self.partition_dim, parallel_state.get_expert_tensor_parallel_world_size()
        shape = list(full_shape)
        shape[dim] = divide(shape[dim], parts)
        weight = Parameter(torch.empty(*shape, device=parameter_device(config), dtype=config.params_dtype))
        if not config.perform_initialization:
            set_tensor_model_parallel_attributes(weight, True, dim, 1)
        elif config.use_cpu_initialization:
            rank = parallel_state.get_expert_tensor_parallel_rank()
            _initialize_affine_weight_cpu(
                weight, *full_shape, shape[dim], dim, init_method, rank=rank, world_size=parts,
                params_dtype=config.params_dtype,
            )  # fmt: skip
        else:
            _initialize_affine_weight_gpu(weight, init_method, partition_dim=dim, is_expert=True)
        weight.allreduce = config.expert_model_parallel_size == 1
        return weight

    def forward(self, x, m_splits: list[int]):
        """x [tokens, in] sorted by expert, m_splits tokens per expert -> ([tokens, out], no bias)."""
        weights = [getattr(self, f"weight{index}") for index in range(self.num_gemms)]
        sizes = torch.as_tensor(m_splits, dtype=torch.int64).to(x.device)
        return GroupedMatmul.apply(x, sizes, *weights), None

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """One key for all experts, sharded along an expert axis before the weight's: the layout of SequentialMLP."""
        first = parallel_state.get_expert_model_parallel_rank() * self.num_gemms
        total = parallel_state.get_expert_model_parallel_world_size() * self.num_gemms
        axis, state = len(sharded_offsets), {}
        for index in range(self.num_gemms):
            sub_state = make_sharded_tensors_for_checkpoint(
                {f"{index}.weight": getattr(self, f"weight{index}")},
                "",
                {f"{index}.weight": self.partition_dim},
                (*sharded_offsets, (axis, first + index, total)),
            )
            replace_prefix_for_sharding(sub_state, f"{index}.", prefix)
            state[f"{prefix}weight{index}"] = sub_state[f"{index}.weight"]
        for tensor in state.values():  # experts are replicated over the expert data-parallel ranks only
            tensor.replica_id = (*tensor.replica_id[:2], parallel_state.get_expert_data_parallel_rank())
        return state


class TEColumnParallelGroupedLinear(TEGroupedLinear):
    """Grouped linear layer whose outputs are split over the expert tensor-parallel ranks."""

    partition_dim = 0


class TERowParallelGroupedLinear(TEGroupedLinear):
    """Grouped linear layer whose inputs are split over the expert tensor-parallel ranks."""

    partition_dim = 1
