"""What the real verl and Megatron say, in a process of its own: `python real_code.py COMMAND < cases.json`.

Worlds of many ranks are faked with torch's own "fake" process group: Megatron computes groups, nothing is sent.
"""

import contextlib
import json
import sys

import torch
import torch.distributed as dist
from hydra.errors import InstantiationException
from torch.testing._internal.distributed.fake_pg import FakeStore

REFUSALS = (AssertionError, ValueError, RuntimeError, ZeroDivisionError, TypeError, InstantiationException)


@contextlib.contextmanager
def world(size: int, rank: int = 0):
    """A world of `size` ranks, seen from one of them."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def groups(case: dict):
    """Megatron's groups, as verl's worker asks for them."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"],
        virtual_pipeline_model_parallel_size=case.get("vpp"),
        context_parallel_size=case["cp"],
        expert_model_parallel_size=case["ep"],
        expert_tensor_parallel_size=case["etp"],
        create_gloo_process_groups=False,  # they are made of real sockets
    )


def layouts(cases: list[dict]) -> list[str | None]:
    """For each case None, or which part of the real code refuses it and how."""
    from recipes.compose import compose

    config = compose("smoke").config
    return [_refusal(config.copy(), case) for case in cases]


def _refusal(config, case: dict) -> str | None:
    from omegaconf import OmegaConf

    for key, value in case["values"].items():
        OmegaConf.update(config, key, value, force_add=True)
    for name, step in (("config", _validated), ("groups", _grouped), ("data", _dealt_out)):
        try:
            with contextlib.redirect_stdout(sys.stderr):
                step(config, case)
        except REFUSALS as error:
            return f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def _validated(config, case: dict):
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    validate_config(config, use_reference_policy=True, use_critic=False)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)


def _grouped(config, case: dict):
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    with world(case["devices"]):
        groups(case)
        get_num_layers_to_build(_transformer(case))


def _dealt_out(config, case: dict):
    """What the trainer and the workers do with a batch, with their own functions."""
    from verl import DataProto
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions, rearrange_micro_batches

    rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    dp = case["devices"] // (case["tp"] * case["pp"] * case["cp"])
    width = config.data.max_prompt_length + config.data.max_response_length
    if config.trainer.balance_batch:
        get_seqlen_balanced_partitions([1] * rows, k_partitions=case["devices"], equal_size=True)
    tokens = torch.ones((rows, width), dtype=torch.long)
    batch = DataProto.from_dict({"input_ids": tokens, "attention_mask": tokens.clone()})
    part = batch.chunk(dp)[0]
    size = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n // dp
    mini = next(iter(part.make_iterator(mini_batch_size=size, epochs=1)))
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        rearrange_micro_batches(mini.batch, max_token_len=actor.ppo_max_token_len_per_gpu * case["cp"])


def parameters(cases: list[dict]) -> list[list[int]]:
    """Dense and expert parameters of Megatron's own GPTModel on the meta device."""
    import megatron.core.transformer.moe.grouped_gemm_util as grouped_gemm
    from megatron.core.transformer import dot_product_attention, torch_norm

    torch.cuda.current_device = lambda: torch.device("meta")
    grouped_gemm.assert_grouped_gemm_is_available = lambda: None
    # Attention has no parameters and refuses context parallelism; RMSNorm needs a torch that has it.
    dot_product_attention.DotProductAttention.__init__ = lambda self, *a, **k: torch.nn.Module.__init__(self)
    torch_norm.WrappedTorchNorm.__new__ = lambda cls, config, hidden_size, eps=1e-5, **k: torch.nn.RMSNorm(hidden_size)
    return [_count(case) for case in cases]


def _count(case: dict) -> list[int]:
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    model = case["model"]
    with world(case["devices"], case["stage"] * (case["devices"] // case["pp"])), torch.device("meta"):
        groups(case)
        spec = get_gpt_layer_local_spec(
            num_experts=model["experts"], moe_grouped_gemm=True, qk_layernorm=model["qk_norm"], normalization="RMSNorm"
        )
        built = GPTModel(
            _transformer(case),
            spec,
            vocab_size=model["vocabulary"],
            max_sequence_length=4096,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
        )
        # with ep 1 Megatron marks experts as dense: tell them apart by name
        sizes = [(".experts." in name, weight.numel()) for name, weight in built.named_parameters()]
    return [sum(size for expert, size in sizes if expert is wanted) for wanted in (False, True)]


def gradients(cases: list[dict]) -> list[list[int]]:
    """Over how many ranks Megatron reduces an expert's gradient, and on how many that expert's weight lies."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    return [_reduced(case) for case in cases]


def _reduced(case: dict) -> list[int]:
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    with world(case["devices"]):
        groups(case)
        config = _transformer(case)
        expert = ColumnParallelLinear(96, 32, config=config, init_method=None, bias=False, is_expert=True)
        chunk = torch.nn.ModuleDict({"experts": expert})
        trained = DistributedDataParallel(config, DistributedDataParallelConfig(), chunk)
        (buffer,) = trained.buffers or trained.expert_parallel_buffers
        return [buffer.data_parallel_world_size, parallel_state.get_expert_data_parallel_world_size()]


def _transformer(case: dict):
    import torch.nn.functional as functional
    from megatron.core.transformer.transformer_config import TransformerConfig

    model = case["model"]
    return TransformerConfig(
        num_layers=model["layers"],
        hidden_size=model["hidden"],
        num_attention_heads=model["heads"],
        num_query_groups=model["kv_heads"],
        kv_channels=model["head_dim"],
        ffn_hidden_size=model["width"],
        moe_ffn_hidden_size=model["expert_width"],
        num_moe_experts=model["experts"],
        moe_router_topk=model["active"],
        moe_grouped_gemm=True,
        normalization="RMSNorm",
        qk_layernorm=model["qk_norm"],
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=functional.silu,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"],
        context_parallel_size=case["cp"],
        expert_model_parallel_size=case["ep"],
        expert_tensor_parallel_size=case["etp"],
        sequence_parallel=case["tp"] > 1,
        virtual_pipeline_model_parallel_size=case.get("vpp"),
        use_cpu_initialization=True,
        perform_initialization=False,
        num_layers_in_first_pipeline_stage=case["first"],
        num_layers_in_last_pipeline_stage=case["last"],
    )


if __name__ == "__main__":
    torch.cuda.Stream = lambda *a, **k: None  # Megatron makes one while it initialises
    answer = {"layouts": layouts, "parameters": parameters, "gradients": gradients}[sys.argv[1]](json.load(sys.stdin))
    print(json.dumps(answer))
