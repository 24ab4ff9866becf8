"""Checkpoints that load again."""

from patches.patch import Edits, Patch
from patches.shapes import append, only_where

LINEAR = "MindSpeedTELayerNormColumnParallelLinear"

PATCH = Patch(
    id="mindspeed/extra-state",
    problem="F2",
    matrices=("performance",),
    why="resuming crashes on unexpected keys `…_extra_state`: a hook adds them, and no method takes them",
    upstream="none; 1cdd0ab has no such hook",
    targets=(
        Edits(
            "mindspeed.te.pytorch.module.layernorm_column_parallel_linear",
            only_where(
                f"{LINEAR}.__init__",
                """
                self._register_load_state_dict_pre_hook(
                    lambda state_dict, prefix, *args, **kwargs: state_dict.setdefault(f"{prefix}_extra_state")
                )
                """,
                "no hook adds _extra_state",
            ),
            append(
                LINEAR,
                '''
                def set_extra_state(self, state):
                    """Takes the empty state that the hook adds."""
                ''',
            ),
        ),
    ),
)
