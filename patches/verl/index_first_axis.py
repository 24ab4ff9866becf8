"""Four names that vanished from transformers, and the rl-plugin for those who install it."""

from patches.patch import Added, Edits, Patch
from patches.shapes import append, replace

VANISHED = (
    "from transformers.integrations.npu_flash_attention import index_first_axis, pad_input, rearrange, unpad_input"
)
OURS = "from verl.utils.rl_padding import index_first_axis, pad_input, rearrange, unpad_input"

PATCH = Patch(
    id="verl/index-first-axis",
    problem="S5",
    matrices=("commercial",),
    why="does not import with transformers after 4.55.0: index_first_axis and three more are gone from its "
    "npu_flash_attention",
    upstream="21271aa has its own in verl/utils/npu_utils.py",
    targets=(
        *(
            Edits(f"verl.{module}", replace(scope, VANISHED, OURS))
            for module, scope in (
                ("workers.actor.dp_actor", ""),
                ("workers.critic.dp_critic", ""),
                ("workers.engine.fsdp.engine_impl", ""),
                ("trainer.fsdp_sft_trainer", ""),
                ("workers.fsdp_workers", "RewardModelWorker._forward_micro_batch"),
            )
        ),
        Edits(
            "verl",
            append(
                "",
                """
                if is_npu_available:  # last: the plugin imports names of this module
                    from .utils import rl_plugin

                    rl_plugin.activate()
                """,
            ),
        ),
        Added("verl.utils.rl_padding"),
        Added("verl.utils.rl_plugin"),
    ),
)
