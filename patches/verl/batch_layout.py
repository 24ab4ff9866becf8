"""One setting for the order of rows, and a guard."""

from patches.patch import Added, Edits, Patch
from patches.shapes import imports, replace

TIMES = "repeat_times=self.config.actor_rollout_ref.rollout.n"
REPEAT = TIMES + ", interleave=True"
SET = TIMES + ", interleave=rl_batch_layout.interleave()"


def _trainer(scope: str, batch: str):
    """Edits of one trainer: both repeats, and the check once rows of both are in one batch."""
    return (
        imports("from verl.utils import rl_batch_layout"),
        *(replace(scope, f"{b} = {b}.repeat({REPEAT})", f"{b} = {b}.repeat({SET})") for b in ("gen_batch", batch)),
        replace(scope, f"{batch} = {batch}.union(gen_batch_output)", f"...\nrl_batch_layout.check({batch})"),
    )


PATCH = Patch(
    id="verl/batch-layout",
    problem="S2",
    matrices=("performance", "commercial"),
    why="the order of rows is written twice, for prompts and for responses; where only one is changed, answers "
    "meet other prompts' ground truth, rewards are 0 and nothing says so. VERL_ROLLOUT_INTERLEAVE=0 sets both",
    upstream="#3760 changed both for DAPO, #3770 took it back because of filter_groups",
    targets=(
        Edits("verl.trainer.ppo.ray_trainer", *_trainer("RayPPOTrainer.fit", "batch")),
        Edits(
            "recipe.dapo.dapo_ray_trainer",
            *_trainer("RayDAPOTrainer.fit", "new_batch"),
            replace(
                "RayDAPOTrainer.fit",
                "from omegaconf import OmegaConf",
                "...\n\nrl_batch_layout.refuse_filter_groups(self.config.algorithm)",
            ),
            optional=True,
        ),
        Added("verl.utils.rl_batch_layout"),
    ),
)
