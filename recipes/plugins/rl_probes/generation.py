"""What a rollout drew from, and what it gave."""

import functools
import os
from pathlib import Path

import torch
from verl.workers.megatron_workers import ActorRolloutRefWorker

from rl_probes import journal


def install() -> None:
    """Wraps each worker's rollout. The dispatch attributes that verl put on the method stay."""
    ActorRolloutRefWorker.generate_sequences = _observed(ActorRolloutRefWorker.generate_sequences)


def _observed(generate_sequences):
    @functools.wraps(generate_sequences)
    def generate(worker, prompts):
        journal.step = step = prompts.meta_info.get("global_steps")
        owner = _state_owner(worker)
        _noise(owner, step)
        state = journal.fingerprint(owner.gen_random_states)
        output = generate_sequences(worker, prompts)
        prompts, answers = (list(map(journal.fingerprint, output.batch[name])) for name in ("prompts", "responses"))
        entry = {"engine": _engine(worker), "state": state, "prompts": prompts, "answers": answers}
        journal.write("generation", {"step": step, **entry})
        return output

    return generate


def _noise(owner, step) -> None:
    """Keeps the random state of this step, or takes the earlier run's."""
    place = Path("noise") / f"step{step}-rank{journal.rank()}.pt"
    if earlier := os.environ.get("RL_PROBES_EARLIER"):
        owner.gen_random_states = torch.load(Path(earlier) / place, weights_only=True)
    else:
        (journal.FOLDER / place).parent.mkdir(parents=True, exist_ok=True)
        torch.save(owner.gen_random_states, journal.FOLDER / place)


def _state_owner(worker):
    """Who keeps the random state of generation: the worker (21271aa, 0.6.0), or its sharding manager (796871d)."""
    return worker if hasattr(worker, "gen_random_states") else worker.sharding_manager


def _engine(worker) -> int:
    """The number of this rank's rollout engine; a stand-in's is the rank's own."""
    if os.environ.get("RL_PROBES_ROLLOUT"):
        return int(journal.rank())
    return int(journal.rank()) // worker.config.rollout.tensor_model_parallel_size
