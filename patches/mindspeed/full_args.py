"""MindSpeed's arguments beside a whole Megatron-LM."""

from patches.patch import Edits, Patch
from patches.shapes import replace

PATCH = Patch(
    id="mindspeed/full-args",
    problem="F16",
    matrices=("commercial",),
    why='AssertionError "args is not initialized." as soon as megatron.training can be imported, as from a checkout',
    upstream="dcba784c (2025-09-11)",
    targets=(
        Edits(
            "mindspeed.args_utils",
            replace(
                "get_full_args",
                "full_args = get_args()",
                "full_args = _GLOBAL_ARGS and get_args()  # None until Megatron's own start-up, which verl has not",
                fixed="""
                if "args is not initialized." in str(e):
                    full_args = get_mindspeed_args()
                else:
                    raise e
                """,
            ),
        ),
    ),
)
