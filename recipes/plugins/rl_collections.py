"""Takes what is there before a model is built, and before the first rollout, out of the garbage collector's reach.

verl collects garbage a dozen times a step (`aggressive_empty_cache`, memory_utils.py at 0.6.0), and it and vLLM as
often while they build a model; each collection walks the millions of objects that torch, vLLM and transformers made at
import: with a toy model that was three quarters of a step's time (sampled on two cores). Those objects live until the
process ends, so nothing is lost by not looking.
"""

import functools
import gc

from verl.workers.megatron_workers import ActorRolloutRefWorker


def install() -> None:
    """Freezes at the worker's first call of each, when everything is imported and when every model is built."""
    ActorRolloutRefWorker.init_model = _freezing(ActorRolloutRefWorker.init_model)
    ActorRolloutRefWorker.generate_sequences = _freezing(ActorRolloutRefWorker.generate_sequences)


def _freezing(method):
    frozen = []

    @functools.wraps(method)
    def call(worker, *arguments, **options):
        if not frozen:
            gc.collect()
            gc.freeze()
            frozen.append(True)
        return method(worker, *arguments, **options)

    return call
