"""Metrics of all copies of the model."""

from patches.patch import Added, Edits, Patch
from patches.shapes import replace

PATCH = Patch(
    id="verl/metrics-all-ranks",
    problem="F15",
    matrices=("commercial",),
    why="actor/* metrics (pg_loss, kl_loss, ppo_kl, entropy) are those of the first data-parallel rank only",
    upstream="21271aa merges them in DataProto.concat",
    targets=(
        Edits(
            "verl.protocol",
            replace(
                "DataProto.concat",
                "return cls(batch=new_batch, non_tensor_batch=non_tensor_batch, meta_info=data[0].meta_info)",
                """
                from verl.utils.rl_metrics import merged

                return cls(
                    batch=new_batch, non_tensor_batch=non_tensor_batch, meta_info=merged([d.meta_info for d in data])
                )
                """,
                fixed='merged_meta_info["metrics"] = list_of_dict_to_dict_of_list(all_metrics)',
            ),
        ),
        Added("verl.utils.rl_metrics"),
    ),
)
