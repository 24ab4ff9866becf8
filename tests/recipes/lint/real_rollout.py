"""What vllm-ascend makes of rollouts, on the emulator, in a process of its own: `real_rollout.py CASES_FILE`.

A case is a recipe's changed settings. They go through verl's own RolloutConfig and vLLMRollout and vLLM's own LLM, up
to the place where the engine would be started: there EngineArgs make their VllmConfig, in which NPUPlatform has its
say. Needs no weights and no tokenizer. The answer holds for each case the configuration or the refusal.
"""

import contextlib
import dataclasses
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import torch.distributed as dist
import vllm.config as vllm_config
import vllm.entrypoints.llm as entrypoint
import vllm_ascend
from omegaconf import OmegaConf
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout
from vllm import EngineArgs
from vllm_ascend import ascend_config, utils
from vllm_ascend.core.schedule_config import AscendSchedulerConfig

from recipes.compose import compose

# What vllm-ascend keeps once a process, as a process has one engine; not all of them exist at both commits.
KEPT = ("_IS_MOE_MODEL", "_ENABLE_SP", "_ENABLE_NZ")


class Built(BaseException):
    """Thrown where the engine would be started; not an Exception, so that nobody on the way takes it for a fault."""


def stop(engine_args, usage_context):
    """In place of LLMEngine.from_engine_args."""
    raise Built(engine_args.create_engine_config(usage_context))


@contextlib.contextmanager
def process(variables: dict):
    """What a process of its own would have: its environment, and nothing that was kept from another engine."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in variables.items()})
    ascend_config.clear_ascend_config()
    for name in KEPT:
        if hasattr(utils, name):
            setattr(utils, name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def outcome(config) -> dict:
    """The configuration with which the engine of this recipe would be started, or what refuses it."""
    try:
        rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        path = config.actor_rollout_ref.model.path
        model = SimpleNamespace(
            local_path=path,
            tokenizer=None,
            hf_config=AutoConfig.from_pretrained(path),
            trust_remote_code=False,
            lora_rank=0,
        )
        vLLMRollout(rollout, model, device_mesh=None)
    except Built as built:
        return described(*built.args)
    except Exception as error:
        return refusal(error)
    raise AssertionError("vLLMRollout did not start an engine")


def described(config: vllm_config.VllmConfig) -> dict:
    """What the test compares."""
    compilation, scheduler = config.compilation_config, config.scheduler_config
    return {
        "sizes": compilation.cudagraph_capture_sizes,
        "level": compilation.level,
        "mode": compilation.cudagraph_mode.name,
        "scheduler": _name(scheduler.scheduler_cls),
        "chunked": scheduler.chunked_prefill_enabled,
        "tokens": scheduler.max_num_batched_tokens,
        "sequences": scheduler.max_num_seqs,
        "length": scheduler.max_model_len,
        "block": config.cache_config.block_size,
        "prefix": config.cache_config.enable_prefix_caching,
        "worker": _name(config.parallel_config.worker_cls),
    }


def refusal(error: Exception) -> dict:
    """The exception's type, its module's file and line, and its first line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    words = str(error).strip().splitlines()
    where = "/".join(Path(place.filename).parts[-2:])
    return {"refused": type(error).__name__, "by": where, "line": place.lineno, "message": " ".join(words)[:300]}


def _name(given) -> str:
    return given.rsplit(".", 1)[-1] if isinstance(given, str) else given.__name__


def main(cases: list[dict]) -> dict:
    """The outcomes, the vllm-ascend that they are of, and the names that it and vLLM read."""
    entrypoint.LLMEngine.from_engine_args = stop
    config = compose("smoke").config
    outcomes = []
    with contextlib.redirect_stdout(sys.stderr):
        for values in cases:
            changed = config.copy()
            for key, value in values.items():
                OmegaConf.update(changed, key, value, force_add=True)
            with process(changed.launch.env):
                outcomes.append(outcome(changed))
    return {"vllm_ascend": str(Path(vllm_ascend.__file__).parent), "outcomes": outcomes, "names": names()}


def names() -> dict[str, list[str]]:
    """Fields that arguments of an engine and their parts have."""
    of = {
        "engine": EngineArgs,
        "compilation": vllm_config.CompilationConfig,
        "scheduler": AscendSchedulerConfig,
    }
    found = {name: [field.name for field in dataclasses.fields(kind) if field.init] for name, kind in of.items()}
    return found | {"torchair": torchair_names()}


def torchair_names() -> list[str]:
    """Attributes that TorchairGraphConfig takes from a mapping, whatever its other arguments are at a commit."""
    others = [None] * (len(inspect.signature(ascend_config.TorchairGraphConfig).parameters) - 1)
    return list(vars(ascend_config.TorchairGraphConfig({}, *others)))


if __name__ == "__main__":
    os.environ["RANK"] = "0"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1024)
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
