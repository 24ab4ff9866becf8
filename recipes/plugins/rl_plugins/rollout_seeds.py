"""Seeds each rollout from (seed, step, data-parallel rank), so that a resumed run samples what the unbroken one would.

verl keeps the random state of generation in the worker and not in its checkpoints, and at 21271aa and 0.6.0
overwrites the state that it seeded per rank (megatron_workers.py, `_build_rollout` then `trainer_mode`).
"""

import functools

from verl.utils.device import get_torch_device
from verl.workers.megatron_workers import ActorRolloutRefWorker

STRIDE = 1_000_003  # a prime far above any number of ranks: no (step, rank) pair meets another


def generation_seed(base: int, step: int, rank: int) -> int:
    """A seed for one rollout of one data-parallel rank; equal on the tensor-parallel ranks of it."""
    return base + step * STRIDE + rank


def install() -> None:
    """Sets, before each rollout of a worker, the random state that its `rollout_mode` switches to."""
    ActorRolloutRefWorker.generate_sequences = _seeded(ActorRolloutRefWorker.generate_sequences)


def _seeded(generate_sequences):
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
