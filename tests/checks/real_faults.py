"""Makes real faults happen in the real stack on the emulated NPU: `real_faults.py FOLDER` writes a log for each.

A fault is a function that does what a run with that mistake does. What verl, vLLM, vllm-ascend, Megatron and torch
print on the way, and the traceback they end with, is its log; it is named after the row of the table and the mistake.
"""

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import vllm.entrypoints.llm as entrypoint
from omegaconf import OmegaConf
from torch.testing._internal.distributed.fake_pg import FakeStore
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout
from vllm import EngineArgs
from vllm_ascend import ascend_config, utils

from recipes.compose import compose

ROLLOUT = "actor_rollout_ref.rollout"
DENSE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 320, "hidden_size": 96,
    "intermediate_size": 128, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "num_hidden_layers": 94,
}  # fmt: skip


class Built(BaseException):
    """Thrown where the engine would load weights; no Exception, so that nobody on the way takes it for a fault."""


def stop(engine_args, usage_context):
    """In place of LLMEngine.from_engine_args."""
    raise Built


def rollout(**changed):
    """verl's synchronous rollout with these keys, up to where vLLM loads weights; a dense model of 64 positions."""
    from transformers import Qwen3Config

    config = compose("smoke").config
    for key, value in {f"{ROLLOUT}.tensor_model_parallel_size": 1, **changed}.items():
        OmegaConf.update(config, key, value, force_add=True)
    utils._IS_MOE_MODEL = None
    ascend_config.clear_ascend_config()
    model = SimpleNamespace(
        local_path=str(MODEL), tokenizer=None, hf_config=Qwen3Config(**DENSE), trust_remote_code=False, lora_rank=0
    )
    vLLMRollout(omega_conf_to_dataclass(config.actor_rollout_ref.rollout), model, device_mesh=None)


def engine(**arguments):
    """What a worker of vLLM makes of an engine's arguments."""
    ascend_config.clear_ascend_config()
    utils._IS_MOE_MODEL = None
    defaults = {"model": str(MODEL), "skip_tokenizer_init": True, "max_model_len": 64}
    EngineArgs(**{**defaults, **arguments}).create_engine_config()


def verl_key():
    omega_conf_to_dataclass(OmegaConf.create({**compose("smoke").config.actor_rollout_ref.rollout, "max_sequences": 8}))


def expert_parallel_key():
    given = compose("smoke").config.actor_rollout_ref.rollout
    omega_conf_to_dataclass(OmegaConf.create({**given, "enable_expert_parallel": True}))


def old_engine():
    with variables(VLLM_USE_V1="0"):
        engine()


def uneven_batch():
    from verl import DataProto

    DataProto.from_single_dict({"input_ids": torch.zeros(30, 4)}).chunk(8)


def uneven_balance():
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    get_seqlen_balanced_partitions([4] * 10, k_partitions=4, equal_size=True)


def small_budget():
    from tensordict import TensorDict
    from verl.utils.seqlen_balancing import rearrange_micro_batches

    rows = {"input_ids": torch.zeros(2, 48), "attention_mask": torch.ones(2, 48)}
    rearrange_micro_batches(TensorDict(rows, batch_size=2), max_token_len=40)


def unknown_source():
    from verl.utils.reward_score import default_compute_score

    default_compute_score("mine/set", "7", "7")


def uneven_layout():
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=4)


def no_memory():
    keep = [torch.zeros(2**28, device="npu")]
    while True:
        keep.append(torch.zeros(2**28, device="npu"))


def second_queue():
    graph = torch.npu.NPUGraph()
    with variables(TASK_QUEUE_ENABLE="2"), torch.npu.graph(graph):
        torch.ones(1, device="npu")


def expandable_segments():
    from vllm_ascend.device_allocator.camem import CaMemAllocator

    with variables(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"):
        CaMemAllocator()


FAULTS = {
    "E1-verl-key": verl_key,
    "S13-expert-parallel-key": expert_parallel_key,
    "E12-v0-engine": old_engine,
    "S11-eager-and-torchair": lambda: engine(
        enforce_eager=True, additional_config={"torchair_graph_config": {"enabled": True}}
    ),
    "S12-experts-of-a-dense-model": lambda: engine(enable_expert_parallel=True),
    "E6-heads": lambda: engine(tensor_parallel_size=4, distributed_executor_backend="mp"),
    "E7-positions": lambda: engine(max_model_len=4096),
    "E7-chunked-prefill": lambda: rollout(
        **{f"{ROLLOUT}.enable_chunked_prefill": True, f"{ROLLOUT}.max_num_batched_tokens": 24}
    ),
    "E7-context": lambda: rollout(**{f"{ROLLOUT}.response_length": 400}),
    "F5-capture-sizes": lambda: rollout(
        **{f"{ROLLOUT}.cudagraph_capture_sizes": [1, 2], f"{ROLLOUT}.response_length": 16}
    ),
    "G3-graph-mode": lambda: engine(compilation_config={"cudagraph_mode": "FULL"}),
    "G4-capture-sizes": lambda: engine(),
    "S7-data-proto": uneven_batch,
    "S7-balance": uneven_balance,
    "E21-token-budget": small_budget,
    "E15-data-source": unknown_source,
    "E4-layout": uneven_layout,
    "D1-memory": no_memory,
    "F12-task-queue": second_queue,
    "D5-expandable-segments": expandable_segments,
}


@contextlib.contextmanager
def variables(**values):
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def log_of(fault, path):
    """Runs a fault with everything that it prints in a file, its traceback last."""
    saved = os.dup(1), os.dup(2)
    with path.open("w") as file:
        os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
        try:
            fault()
        except Built:
            pass
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, descriptor in enumerate(saved, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


if __name__ == "__main__":
    FOLDER, ONLY = Path(sys.argv[1]), sys.argv[2:]
    MODEL = FOLDER / "model"
    MODEL.mkdir()
    (MODEL / "config.json").write_text(json.dumps(DENSE))
    entrypoint.LLMEngine.from_engine_args = stop
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=6)
    for name, fault in FAULTS.items():
        if not ONLY or name in ONLY:
            log_of(fault, FOLDER / f"{name}.log")
