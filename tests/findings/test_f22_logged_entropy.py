"""F22: old log-probs compute an entropy that is only logged: 16 instead of 6 bytes per token × vocabulary / tp.

The device's own count of allocated bytes, around verl's worker and actor on a model of which the logits are all that is
large. Without torch.compile in the entropy, as under MindSpeed: with it one of the 4-byte temporaries is fused away.
"""

import os
import shutil
from pathlib import Path

import pytest

STACKS = ("installed", "performance")
PATCH = "verl/log-prob-entropy"
WORKERS = "verl.workers.megatron_workers"


def counted(workers, ranks):
    """Peak of old log-probs over what stays, in bytes per token × vocabulary / tp; names and sum of what they return.

    workers: the file of verl's workers. 32 sequences of 64 tokens in one micro-batch, 8,192 words.
    """
    import importlib.util
    import inspect
    from types import SimpleNamespace

    import tiny
    import torch
    import verl.utils
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.workers.actor.megatron_actor import MegatronPPOActor

    rows, length, words = 32, 64, 8192
    verl.utils.__path__.append(str(Path(workers).parents[1] / "utils"))  # what the patch adds
    spec = importlib.util.spec_from_file_location("verl.workers.megatron_workers_of_the_test", workers)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compute = inspect.unwrap(module.ActorRolloutRefWorker.compute_log_prob)

    tiny.megatron(tp=ranks)
    trainer = tiny.Trainer(vocab_size=words)
    sizes = {"tensor_model_parallel_size": ranks, "context_parallel_size": 1, "sequence_parallel": ranks > 1}
    config = OmegaConf.create({"megatron": sizes, "profiler": {}, "loss_agg_mode": "token-mean"})
    rollout = SimpleNamespace(
        log_prob_micro_batch_size_per_gpu=None,
        log_prob_max_token_len_per_gpu=rows * length,
        log_prob_use_dynamic_bsz=True,
        temperature=1.0,
    )
    actor = MegatronPPOActor(config, None, trainer.hf, trainer.config, trainer.chunks, None)
    worker = SimpleNamespace(
        _is_actor=True, _is_offload_param=False, actor=actor, config=SimpleNamespace(rollout=rollout)
    )
    ids = torch.arange(rows * length).reshape(rows, length) * 5 % words
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "responses": ids[:, length // 2 :]}
    batch |= {"position_ids": batch["attention_mask"].cumsum(1) - 1, "response_mask": batch["responses"] > 0}

    compute(worker, DataProto.from_dict(batch)[:2])  # makes what stays: the mask of attention
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    output = compute(worker, DataProto.from_dict(batch))
    peak = torch.npu.max_memory_allocated() - before
    return {
        "bytes": peak / (rows * length * words / ranks),
        "names": sorted(output.batch.keys()),
        "sum": output.batch["old_log_probs"].sum().item(),
    }


@pytest.fixture
def workers(stack, tmp_path):
    """verl's file of workers, as it is on the stack and patched."""
    from patches.places import place  # not for the process of the stack
    from tests.patches.upstream_code import apply, targets

    def make() -> dict[bool, Path]:
        here = place(None if stack == "installed" else Path(os.environ["UPSTREAM_ROOT"], stack))
        found = {}
        for patched in (False, True):
            for name in (*targets(PATCH), "verl.utils"):
                path = tmp_path.joinpath(str(patched), *name.split("."))
                path = path / "__init__.py" if name == "verl.utils" else path.with_suffix(".py")
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(here.module(name), path)
            found[patched] = tmp_path.joinpath(str(patched), *WORKERS.split(".")).with_suffix(".py")
        apply(PATCH, tmp_path / "True")
        return found

    return make


def test_the_entropy_takes_ten_of_sixteen_bytes(on, workers):
    files = workers()
    fault, cured = (on(counted, files[patched], 2, ranks=2)[0] for patched in (False, True))
    print(fault, cured)
    assert fault["names"] == ["entropys", "old_log_probs"] and cured["names"] == ["old_log_probs"]
    assert cured["sum"] == pytest.approx(fault["sum"], rel=1e-4)
    assert (fault["bytes"], cured["bytes"]) == (pytest.approx(16, rel=0.03), pytest.approx(6, rel=0.03))


def test_asked_for_it_is_there(on, workers):
    asked = on(counted, workers()[True], 1, VERL_OLD_LOG_PROB_ENTROPY=1)
    assert asked["names"] == ["entropys", "old_log_probs"] and asked["bytes"] == pytest.approx(16, rel=0.03)
