"""Old log-probs without the entropy that only a log line shows."""

from patches.patch import Added, Edits, Patch
from patches.shapes import imports, replace

LOGGED = """
entropys = old_log_prob.batch["entropys"]
response_masks = batch.batch["response_mask"]
loss_agg_mode = self.config.actor_rollout_ref.actor.loss_agg_mode
entropy_agg = agg_loss(loss_mat=entropys, loss_mask=response_masks, loss_agg_mode=loss_agg_mode)
old_log_prob_metrics = {"actor/entropy": entropy_agg.detach().item()}
metrics.update(old_log_prob_metrics)
old_log_prob.batch.pop("entropys")
"""
IF_THERE = 'if "entropys" in old_log_prob.batch.keys():\n    ...'

PATCH = Patch(
    id="verl/log-prob-entropy",
    problem="F22",
    matrices=("performance", "commercial"),
    why="old log-probs compute the entropy, too: 16 instead of 6 bytes per token × vocabulary / tp on the last "
    "stage, for a number that is only logged; VERL_OLD_LOG_PROB_ENTROPY=1 asks for it",
    upstream="actor.calculate_entropy, later",
    targets=(
        Edits(
            "verl.workers.megatron_workers",
            imports("from verl.utils import rl_entropy"),
            replace(
                "ActorRolloutRefWorker.compute_log_prob",
                """
                output, entropys = self.actor.compute_log_prob(data=data, calculate_entropy=True)
                output = DataProto.from_dict(
                    tensors={"old_log_probs": output, "entropys": entropys},
                    meta_info={"temperature": self.config.rollout.temperature},
                )
                """,
                """
                output, entropys = self.actor.compute_log_prob(data=data, calculate_entropy=rl_entropy.is_wanted())
                output = DataProto.from_dict(
                    tensors={"old_log_probs": output, **rl_entropy.tensors(entropys)},
                    meta_info={"temperature": self.config.rollout.temperature},
                )
                """,
            ),
        ),
        Edits("verl.trainer.ppo.ray_trainer", replace("RayPPOTrainer.fit", LOGGED, IF_THERE)),
        Edits("recipe.dapo.dapo_ray_trainer", replace("RayDAPOTrainer.fit", LOGGED, IF_THERE), optional=True),
        Added("verl.utils.rl_entropy"),
    ),
)
