"""What cases share, for their processes: a tiny Qwen3-MoE in verl's Megatron trainer and in vllm-ascend's engine."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch_npu
from transformers import Qwen3MoeConfig

PLUGINS = Path(__file__).resolve().parents[2] / "recipes" / "plugins"


def plugins() -> None:
    """Puts the recipes' plugins on the path, as a run does."""
    sys.path.append(str(PLUGINS))


def take_extra_state() -> None:
    """Stands for the patch mindspeed/extra-state (F2), without which nothing is loaded under MindSpeed 35da6ac."""
    from mindspeed.te.pytorch.module.layernorm_column_parallel_linear import MindSpeedTELayerNormColumnParallelLinear

    MindSpeedTELayerNormColumnParallelLinear.set_extra_state = lambda layer, state: None


def has_mindspeed() -> bool:
    """Whether this stack has MindSpeed."""
    from verl.workers import megatron_workers

    return megatron_workers.repatch is not None


def hf_config(**changes) -> Qwen3MoeConfig:
    """320 words, one layer, 4 experts of width 48, which vllm-ascend's guess of layouts does not confuse (F10)."""
    sizes = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return Qwen3MoeConfig(**sizes | changes)


def ranks() -> None:
    """This process's NPU, and the group of all ranks."""
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")


def megatron(override=None, tp=1, pp=1, cp=1, ep=1, etp=1) -> None:
    """The group of all ranks and Megatron's groups in it; first MindSpeed is told of the override, as in a worker."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    if has_mindspeed():
        from verl.workers import megatron_workers

        megatron_workers.repatch(_override(override))
    ranks()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )
    model_parallel_cuda_manual_seed(0)


def _override(override: dict | None) -> dict:
    """What MindSpeed and Megatron's config get; nothing where there is no MindSpeed to know it."""
    return {"use_flash_attn": True, **(override or {})} if has_mindspeed() else {}


class Trainer:
    """verl's Megatron model as its worker builds it, after `megatron` with the same override."""

    def __init__(self, override=None, dtype=torch.bfloat16, **hf):
        from verl.models.mcore import hf_to_mcore_config, init_mcore_model
        from verl.utils import megatron_utils

        self.hf = hf_config(**hf)
        self.config = hf_to_mcore_config(self.hf, dtype, **_override(override))

        def build(pre_process, post_process):
            return init_mcore_model(
                self.config,
                self.hf,
                pre_process,
                post_process,
                share_embeddings_and_output_weights=False,
                value=False,
                freeze_moe_router=False,
            )

        self.chunks = megatron_utils.get_model(build, transformer_config=self.config, use_distributed_optimizer=True)
        self.module = megatron_utils.unwrap_model(self.chunks[0])

    def step(self) -> float:
        """Forward and backward of two packed sequences, as verl does them; the loss."""
        from megatron.core import parallel_state
        from verl.models.mcore import get_mcore_forward_fn

        ids = torch.arange(64, device="npu").reshape(2, 32) * 5 % 320
        seen = torch.ones_like(ids, dtype=torch.bool)
        seen[1, 24:] = False

        forward = get_mcore_forward_fn(self.hf)
        output = forward(
            self.chunks[0],
            ids,
            seen,
            (seen.cumsum(1) - 1).clamp(min=0),
            sequence_parallel=parallel_state.get_tensor_model_parallel_world_size() > 1,
        )
        loss = torch.nn.functional.cross_entropy(output[seen].float(), ids[seen])
        loss.backward()
        return loss.item()


def operators() -> dict:
    """Operator -> its calls forward and backward in this process."""
    rows = torch_npu.trace.document()["operators"]
    return {name: [row["forward"], row["backward"]] for name, row in sorted(rows.items())}


def engine(folder, hf=None, **arguments):
    """vLLM's engine with vllm-ascend for the tiny model, with the weights of `model(seed=0)`, given as in a reload."""
    from vllm import LLM

    given = model(**hf or {})
    given.save_pretrained(folder)
    settings = {
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "num_gpu_blocks_override": 16,
        "gpu_memory_utilization": 0.1,
        "seed": 0,
    }
    llm = LLM(model=str(folder), **settings | arguments)
    reload(llm, given.state_dict())
    return llm


def model(seed=0, **hf):
    """Hugging Face's tiny model with random weights."""
    from transformers import Qwen3MoeForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3MoeForCausalLM(hf_config(**hf))


def reload(llm, weights) -> None:
    """Gives a running engine new weights as verl's rollout does it."""
    from verl.utils.vllm.patch import patch_vllm_moe_model_weight_loader

    loaded = runner(llm).model
    loaded = loaded.unwrap() if hasattr(loaded, "unwrap") else loaded
    patch_vllm_moe_model_weight_loader(loaded)
    loaded.load_weights(iter(weights.items()))


def runner(llm):
    """The engine's model runner, in this process."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner
