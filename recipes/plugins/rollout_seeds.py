"""Seeds each rollout from (seed, step, data-parallel rank), so that a resumed run samples what the unbroken one would.

verl keeps the random state of generation in the worker and not in its checkpoints, and at 21271aa and 0.6.0
overwrites the state that it seeded per rank (megatron_workers.py, `_build_rollout` then `trainer_mode`). Loaded through
verl's own extension point, `actor_rollout_ref.model.external_lib`.
"""

import functools

from verl.utils.device import get_torch_device
from verl.workers import megatron_workers

STRIDE = 1_000_003  # a prime far above any number of ranks: no (step, rank) pair meets another


def generation_seed(base: int, step: int, rank: int) -> int:
    """A seed for one rollout of one data-parallel rank; equal on the tensor-parallel ranks of it."""
    return base + step * STRIDE + rank


def seeded(generate_sequences):
    """Wraps `ActorRolloutRefWorker.generate_sequences`: sets the state that `rollout_mode` will switch to."""

    @functools.wraps(generate_sequences)
    def generate(worker, prompts):
        device = get_torch_device()
        trainer_state = device.get_rng_state()
        rank = worker.rollout.device_mesh["dp"].get_local_rank()
        seed = generation_seed(worker.config.actor.megatron.seed, prompts.meta_info["global_steps"], rank)
        device.manual_seed(seed)
        worker.gen_random_states = device.get_rng_state()
        device.set_rng_state(trainer_state)
        return generate_sequences(worker, prompts)

    return generate


worker_class = megatron_workers.ActorRolloutRefWorker
worker_class.generate_sequences = seeded(worker_class.generate_sequences)
