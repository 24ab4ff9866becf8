"""F8: vllm-ascend forces its scheduler in the driver's process only; spawned workers take the kernel of the other one.

15b2e5c (platform.py:148); 0.11.0rc1 forces nothing.
"""

STACKS = ("performance",)


def driver(additional, folder):
    """Whether the driver has the Ascend scheduler; leaves its configuration for the worker, pickled as in vLLM."""
    import pickle
    from pathlib import Path

    import tiny
    from vllm import EngineArgs
    from vllm_ascend.ascend_config import get_ascend_config

    tiny.hf_config().save_pretrained(folder)
    arguments = EngineArgs(model=folder, skip_tokenizer_init=True, enforce_eager=True, additional_config=additional)
    Path(folder, "config.pickle").write_bytes(pickle.dumps(arguments.create_engine_config()))
    return get_ascend_config().ascend_scheduler_config.enabled


def worker(folder):
    """Whether a worker started with that configuration has it, and its attention for rows behind a cached prefix."""
    import pickle
    from pathlib import Path
    from types import SimpleNamespace

    import numpy
    from vllm_ascend.ascend_config import get_ascend_config
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
    from vllm_ascend.worker.worker_v1 import NPUWorker

    NPUWorker(pickle.loads(Path(folder, "config.pickle").read_bytes()), 0, 0, "env://")
    runner = SimpleNamespace(seq_lens_np=numpy.array([20]), speculative_config=None, chunked_prefill_enabled=False)
    runner.drafter = None
    state = NPUModelRunner._build_attn_state(runner, 1, numpy.array([8]), numpy.array([8]))
    return [get_ascend_config().ascend_scheduler_config.enabled, state.name]


def test_the_worker_does_not_know(on, tmp_path):
    assert on(driver, {}, tmp_path) is True
    assert on(worker, tmp_path) == [False, "ChunkedPrefill"]


def test_the_explicit_key_reaches_it(on, tmp_path):
    assert on(driver, {"ascend_scheduler_config": {"enabled": True}}, tmp_path) is True
    assert on(worker, tmp_path) == [True, "PrefillCacheHit"]
