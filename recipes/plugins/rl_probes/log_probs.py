"""Tokens and log-probabilities of each step: the trainer's and, where it gives them, the rollout's."""

import functools

import torch
from verl.workers.megatron_workers import ActorRolloutRefWorker

from rl_probes import journal

KEPT = ("input_ids", "attention_mask", "position_ids", "responses", "response_mask", "rollout_log_probs")


def install() -> None:
    """Wraps the computation of old log-probabilities: what goes in and comes out goes to a file a step and rank."""
    ActorRolloutRefWorker.compute_log_prob = _observed(ActorRolloutRefWorker.compute_log_prob)


def _observed(compute_log_prob):
    @functools.wraps(compute_log_prob)
    def compute(worker, data):
        there = set(data.batch.keys())
        kept = {name: data.batch[name].cpu().clone() for name in KEPT if name in there}
        output = compute_log_prob(worker, data)
        if "old_log_probs" in set(output.batch.keys()):
            kept["old_log_probs"] = output.batch["old_log_probs"].cpu().clone()
            folder = journal.FOLDER / "log-probs"
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(kept, folder / f"step{journal.step}-rank{journal.rank()}.pt")
        return output

    return compute
