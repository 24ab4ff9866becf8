"""Adam's moments for a run that resumes."""

from patches.patch import Edits, Patch
from patches.shapes import replace

PATCH = Patch(
    id="verl/resume-moments",
    problem="F28",
    matrices=("performance", "commercial"),
    why="a resumed run starts with Adam's moments at zero, without a message: Megatron is asked for what to load "
    "without being told that it loads, and lists no moments before the first update",
    upstream="#3850 (2025-10-24) says is_loading",
    targets=(
        Edits(
            "verl.utils.checkpoint.megatron_checkpoint_manager",
            replace(
                "MegatronCheckpointManager.load_checkpoint",
                "dist_checkpoint_path = get_dist_checkpoint_path(local_path)",
                """
                ...
                if self.should_load_optimizer and self.optimizer is not None:  # makes the moments that are to be loaded
                    for optimizer in getattr(self.optimizer, "chained_optimizers", [self.optimizer]):
                        optimizer.init_state_fn(optimizer.optimizer, optimizer.config)
                """,
            ),
        ),
    ),
)
