"""Experts' weights on their way to the rollout."""

from patches.patch import Edits, Patch
from patches.shapes import replace, swap

PATCH = Patch(
    id="verl/expert-gather",
    problem="F7",
    matrices=("performance", "commercial"),
    why="tp above 1 with ep 1 and expert tp 1: experts are gathered over tp, over which they are replicated, and "
    "reach the rollout with tp times their rows",
    upstream="none",
    targets=(
        Edits(
            "verl.utils.megatron_utils",
            replace(
                "per_tensor_generator",
                "all_gather_group_size = torch.distributed.get_world_size(group=all_gather_group)",
                "...\nexperts_apart = ep_size > 1 or etp_size != all_gather_group_size",
            ),
            swap(
                "per_tensor_generator",
                '".mlp.experts.linear_fc" in cur_name and ep_size > 1',
                '".mlp.experts.linear_fc" in cur_name and experts_apart',
            ),
        ),
    ),
)
