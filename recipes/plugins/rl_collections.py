"""Takes what was there before the first rollout out of the reach of Python's garbage collector.

verl collects garbage a dozen times a step (`aggressive_empty_cache`, memory_utils.py at 0.6.0), and each collection
walks the millions of objects that torch, vLLM and transformers made at import: with a toy model that was three quarters
of a step's time (sampled on two cores). Those objects live until the process ends, so nothing is lost by not looking.
"""

import functools
import gc

from verl.workers.megatron_workers import ActorRolloutRefWorker


def install() -> None:
    """Freezes at the worker's first rollout, when every model is built."""
    ActorRolloutRefWorker.generate_sequences = _freezing(ActorRolloutRefWorker.generate_sequences)


def _freezing(generate_sequences):
    @functools.wraps(generate_sequences)
    def generate(worker, prompts):
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()
        return generate_sequences(worker, prompts)

    return generate
