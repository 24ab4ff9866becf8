"""Answers to one prompt that differ, on however many ranks."""

from patches.patch import Added, Edits, Patch
from patches.shapes import imports, replace

WORKER = "ActorRolloutRefWorker"

PATCH = Patch(
    id="verl/rollout-seeds",
    problem="F1",
    matrices=("performance",),
    why="the first trainer_mode() overwrites the random state that each rollout rank was given: all ranks sample "
    "alike; with rows copy by copy the answers to a prompt are copies",
    upstream="ef6eaa05d (2026-01-27) drops it together with the old workers; 796871d seeds elsewhere",
    targets=(
        Edits(
            "verl.workers.megatron_workers",
            # the state of generation is one only after a rollout began
            replace(
                f"{WORKER}.rollout_mode",
                "get_torch_device().set_rng_state(self.gen_random_states)",
                "...\nself.rollout_began = True",
            ),
            replace(
                f"{WORKER}.trainer_mode",
                "self.gen_random_states = get_torch_device().get_rng_state()",
                """
                if getattr(self, "rollout_began", False):  # else it is still the seeded one, and this the trainer's
                    ...
                """,
            ),
        ),
        Edits(
            "verl.trainer.ppo.ray_trainer",
            imports("from verl.utils import rl_distinct_answers"),
            replace(
                "RayPPOTrainer.fit",
                "batch = batch.union(gen_batch_output)",
                "...\nrl_distinct_answers.check(batch, self.config.actor_rollout_ref.rollout)",
            ),
        ),
        Added("verl.utils.rl_distinct_answers"),
    ),
)
