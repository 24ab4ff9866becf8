"""Switches of MindSpeed that exclude or need one another, as its features validate them.

At 35da6ac TransformerConfig's __post_init__ runs every feature's validators (core/megatron_basic/arguments_basic.py,
transformer_config_post_init_wrapper), so these stop the run while the model is built. 1cdd0ab has no such call.
All files are below mindspeed/features_manager at 35da6ac.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from recipes import schema
from recipes.lint.facts import OVERRIDE, Facts
from recipes.lint.rule import Fault

# Pairs of which only one may be on: incompatible_check(args, ...) of the first one's feature.
INCOMPATIBLE = (
    ("recompute_in_bubble", "optimize_send_recv_comm", "pipeline_parallel/ripipe_schedules_feature.py:17"),
    ("recompute_in_advance", "optimize_send_recv_comm", "pipeline_parallel/ripipe_schedules_feature.py:17"),
    ("recompute_in_bubble", "adaptive_memory_optimization", "pipeline_parallel/ripipe_schedules_feature.py:51"),
    ("swap_optimizer", "reuse_fp32_param", "optimizer/swap_optimizer_feature.py:18"),
    ("reuse_fp32_param", "enable_zero3", "memory/reuse_fp32_param.py:18"),
    ("swap_attention", "adaptive_memory_optimization", "memory/swap_attention.py:26"),
    ("moe_fb_overlap", "moe_alltoall_overlap_comm", "moe/fb_overlap.py:19"),
    ("moe_fb_overlap", "overlap_grad_reduce", "moe/fb_overlap.py:20"),
    ("moe_fb_overlap", "moe_hierarchical_alltoallv", "moe/fb_overlap.py:21"),
    ("moe_fb_overlap", "moe_zero_memory_num_layers", "moe/fb_overlap.py:22"),
    ("moe_fb_overlap", "use_nanopipe", "moe/fb_overlap.py:23"),
    ("moe_fb_overlap", "automated_pipeline", "moe/fb_overlap.py:24"),
    ("moe_fb_overlap", "recompute_in_bubble", "moe/fb_overlap.py:25"),
    ("moe_fb_overlap", "recompute_in_advance", "moe/fb_overlap.py:26"),
    ("moe_fb_overlap", "use_legacy_models", "moe/fb_overlap.py:27"),
    ("moe_fb_overlap", "moe_tp_extend_ep", "moe/fb_overlap.py:28"),
    ("moe_fb_overlap", "swap_attention", "moe/fb_overlap.py:29"),
    ("balanced_moe_experts", "moe_expert_capacity_factor", "moe/balanced_moe.py:27"),
    ("moe_allgather_overlap_comm", "use_ascend_mc2", "moe/moe_allgather_overlap.py:23"),
    ("moe_alltoall_overlap_comm", "use_ascend_mc2", "moe/moe_alltoall_overlap.py:23"),
    ("use_ascend_coc", "use_ascend_mc2", "tensor_parallel/locl_coc.py:26"),
    ("use_ascend_coc", "unaligned_linear", "tensor_parallel/locl_coc.py:25"),
    ("use_ascend_mc2", "unaligned_linear", "tensor_parallel/mc2.py:19"),
    ("use_ascend_mc2", "use_pipe_experts", "tensor_parallel/mc2.py:29"),
    ("use_ascend_mc2", "use_nanopipe", "tensor_parallel/mc2.py:31"),
    ("tp_2d", "sequence_parallel", "tensor_parallel/tp_2d.py:29"),
    ("tp_2d", "use_fused_rmsnorm", "tensor_parallel/tp_2d.py:30"),
    ("tp_2d", "use_nanopipe", "tensor_parallel/tp_2d.py:31"),
    ("tp_2d", "use_ascend_coc", "tensor_parallel/tp_2d.py:32"),
    ("unaligned_linear", "tp_2d", "tensor_parallel/unaligned_linear_feature.py:22"),
    ("pipeline_num_transformer_layers", "noop_layers", "pipeline_parallel/unaligned_pineline_feature.py:42"),
    ("pipeline_num_transformer_layers", "num_layer_list", "pipeline_parallel/unaligned_pineline_feature.py:43"),
)

# Switches that need another one to be on.
NEEDS = (
    ("gemm_gradient_accumulation_fusion", "moe_grouped_gemm", "moe/gmm.py:18"),
    ("reuse_fp32_param", "bf16", "memory/reuse_fp32_param.py:19"),
    ("balanced_moe_experts", "moe_fb_overlap", "moe/balanced_moe.py:23"),
    ("balanced_moe_experts", "moe_grouped_gemm", "moe/balanced_moe.py:24"),
    ("moe_fb_overlap", "moe_grouped_gemm", "moe/fb_overlap.py:30"),
    ("moe_unperm2_mem_optim_swap", "moe_fb_overlap", "moe/fb_overlap.py:38"),
    ("moe_allgather_overlap_comm", "moe_permutation_async_comm", "moe/moe_allgather_overlap.py:27"),
    ("moe_allgather_overlap_comm", "moe_grouped_gemm", "moe/moe_allgather_overlap.py:29"),
    ("moe_alltoall_overlap_comm", "moe_grouped_gemm", "moe/moe_alltoall_overlap.py:28"),
    ("moe_tp_extend_ep", "moe_permutation_async_comm", "moe/tp_extend_ep.py:24"),
    ("moe_tp_extend_ep", "moe_grouped_gemm", "moe/tp_extend_ep.py:24"),
    ("reset_bucket_group_order", "overlap_param_gather", "distributed/reset_bucket_group_order_feature.py:21"),
    ("fsdp2_config_path", "use_torch_fsdp2", "distributed/torch_fully_sharded_data_parallel.py:27"),
    ("use_ulysses_allgather_kv", "group_query_attention", "context_parallel/context_parallel_kv_cache.py:62"),
)


class Arguments(dict):
    """MindSpeed's arguments as its validators see them: defaults, then what verl works out, then the override."""

    def __init__(self, defaults: dict, sizes: dict, own: dict):
        super().__init__({**defaults, **sizes, **own})
        self.own = own  # what the recipe itself writes

    def number(self, name: str, default: int = 0) -> int:
        """A whole number, `default` where there is something else."""
        value = self.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def given(self, name: str) -> int:
        """A whole number that the recipe itself writes, 0 where there is none."""
        return self.number(name) if name in self.own else 0


@dataclass(frozen=True)
class Demand:
    """What a switch asks of others: broken where `broken` says so."""

    subject: str
    message: str
    broken: Callable[[Arguments], bool]
    source: str


def _cp(a: Arguments, algorithm: str) -> bool:
    return a.number("context_parallel_size", 1) > 1 and a.get("context_parallel_algo") == algorithm


def _divides(total: int, part: int) -> bool:
    return total >= 1 and part >= 1 and total % part == 0


def _ring(a: Arguments) -> int:
    """Ranks of a ring in hybrid context parallelism."""
    return a.number("context_parallel_size", 1) // max(1, a.number("ulysses_degree_in_cp"))


def _pp(a: Arguments) -> int:
    return max(1, a.number("pipeline_model_parallel_size", 1))


DEMANDS = (
    Demand(
        "use_fused_rotary_pos_emb",
        "expected position_embedding_type rope beside it",
        lambda a: bool(a.get("use_fused_rotary_pos_emb")) and a.get("position_embedding_type") != "rope",
        "fusions/fused_rope.py:24, AttributeError where the key is missing",
    ),
    Demand(
        "context_parallel_algo",
        "ulysses_cp_algo: cannot run on verl's packed sequences; use megatron_cp_algo",
        lambda a: _cp(a, "ulysses_cp_algo"),
        "context_parallel/ulysses_context_parallel.py:28, seq_length is not there",
    ),
    Demand(
        "attention_mask_type",
        "general: asks for micro_batch_size, which verl does not give; use causal",
        lambda a: a.number("context_parallel_size", 1) > 1 and a.get("attention_mask_type") == "general",
        "transformer/flash_attention, seen on CPU",
    ),
    Demand(
        "cp_window_size",
        "expected at least 1, below cp, and a divisor of it",
        lambda a: _cp(a, "megatron_cp_algo")
        and not (
            1 <= a.number("cp_window_size") < a.number("context_parallel_size", 1)
            and _divides(a.number("context_parallel_size", 1), a.number("cp_window_size"))
        ),
        "context_parallel/context_parallel_feature.py:46-50",
    ),
    Demand(
        "ulysses_degree_in_cp",
        "expected a divisor of cp that leaves a ring of at least 2",
        lambda a: (_cp(a, "hybrid_cp_algo") or _cp(a, "hybrid_adaptive_cp_algo"))
        and not (
            _divides(a.number("context_parallel_size", 1), a.number("ulysses_degree_in_cp"))
            and a.number("context_parallel_size", 1) // a.number("ulysses_degree_in_cp", 1) > 1
        ),
        "context_parallel/context_parallel_feature.py:63-68, adaptive_context_parallel.py:42-46",
    ),
    Demand(
        "cp_window_size",
        "hybrid_cp_algo: expected at least 1, below cp / ulysses_degree_in_cp, and a divisor of it",
        lambda a: _cp(a, "hybrid_cp_algo")
        and not (1 <= a.number("cp_window_size") < _ring(a) and _divides(_ring(a), a.number("cp_window_size"))),
        "context_parallel/context_parallel_feature.py:79-82",
    ),
    Demand(
        "ulysses_degree_in_cp",
        "hybrid_cp_algo: expected attention heads that divide by it × tp",
        lambda a: _cp(a, "hybrid_cp_algo")
        and not _divides(
            a.number("num_attention_heads"),
            a.number("ulysses_degree_in_cp") * a.number("tensor_model_parallel_size", 1),
        ),
        "context_parallel/context_parallel_feature.py:71-74",
    ),
    Demand(
        "context_parallel_algo",
        "adaptive and hybrid adaptive: ask for seq_length, which verl does not give",
        lambda a: (_cp(a, "adaptive_cp_algo") or _cp(a, "hybrid_adaptive_cp_algo")) and "seq_length" not in a.own,
        "context_parallel/adaptive_context_parallel.py:38, 51",
    ),
    Demand(
        "position_embedding_type",
        "alibi: expected cp 1, or megatron_cp_algo, alibi_fusion_attn_type 2 and attention_mask_type causal",
        lambda a: a.number("context_parallel_size", 1) > 1
        and a.get("position_embedding_type") == "alibi"
        and not (
            a.get("context_parallel_algo") == "megatron_cp_algo"
            and a.get("alibi_fusion_attn_type") == 2
            and a.get("attention_mask_type") == "causal"
        ),
        "context_parallel/context_parallel_feature.py:42-54",
    ),
    Demand(
        "seq_length",
        "expected a multiple of 2 × cp",
        lambda a: (_cp(a, "megatron_cp_algo") or _cp(a, "hybrid_cp_algo"))
        and "seq_length" in a.own
        and not _divides(a.number("seq_length"), 2 * a.number("context_parallel_size", 1)),
        "context_parallel/context_parallel_feature.py:40, 76",
    ),
    Demand(
        "use_ulysses_allgather_kv",
        "expected cp above 1 and ulysses_cp_algo",
        lambda a: bool(a.get("use_ulysses_allgather_kv"))
        and (a.number("context_parallel_size", 1) == 1 or a.get("context_parallel_algo") != "ulysses_cp_algo"),
        "context_parallel/context_parallel_kv_cache.py:55-58",
    ),
    Demand(
        "context_parallel_kv_cache_policy",
        "expected cp above 1",
        lambda a: bool(a.get("context_parallel_kv_cache_policy")) and a.number("context_parallel_size", 1) == 1,
        "context_parallel/context_parallel_kv_cache.py:31",
    ),
    Demand(
        "context_parallel_cache_interval",
        "expected context_parallel_kv_cache_policy beside it, and fewer than there are layers",
        lambda a: a.number("context_parallel_cache_interval") != 0
        and (
            not a.get("context_parallel_kv_cache_policy")
            or not 0 <= a.number("context_parallel_cache_interval") < a.number("num_layers")
        ),
        "context_parallel/context_parallel_kv_cache.py:40-49",
    ),
    Demand(
        "sparse_mode",
        "expected 0 or 2 with use_flash_attn",
        lambda a: bool(a.get("use_flash_attn")) and a.get("sparse_mode") not in (0, 2),
        "transformer/flash_attention/fusion_attention_v1_feature.py:55",
    ),
    Demand(
        "moe_permute_fusion",
        "expected the dispatcher alltoall or alltoall_seq, not allgather",
        lambda a: bool(a.get("moe_permute_fusion") or a.get("use_fused_moe_token_permute_and_unpermute"))
        and a.get("moe_token_dispatcher_type") == "allgather",
        "fusions/fused_moe_permute.py:44",
    ),
    Demand(
        "moe_permute_fusion",
        "expected moe_pad_expert_input_to_capacity beside moe_expert_capacity_factor",
        lambda a: bool(a.get("moe_permute_fusion") or a.get("use_fused_moe_token_permute_and_unpermute"))
        and bool(a.get("moe_expert_capacity_factor"))
        and not a.get("moe_pad_expert_input_to_capacity"),
        "fusions/fused_moe_permute.py:49",
    ),
    Demand(
        "moe_alltoall_overlap_comm",
        "expected off: its experts have no linear_fc1, so verl's weights do not fit and workers die while loading",
        lambda a: bool(a.get("moe_alltoall_overlap_comm")),
        "moe/moe_alltoall_overlap.py, seen on CPU",
    ),
    Demand(
        "moe_allgather_overlap_comm",
        "expected moe_token_dispatcher_type allgather beside it",
        lambda a: bool(a.get("moe_allgather_overlap_comm")) and a.get("moe_token_dispatcher_type") != "allgather",
        "moe/moe_allgather_overlap.py:24",
    ),
    Demand(
        "moe_zero_memory_num_layers",
        "expected moe_zero_memory beside it, and no more than a stage has layers",
        lambda a: a.get("moe_zero_memory_num_layers") is not None
        and (
            a.get("moe_zero_memory", "disable") == "disable"
            or not 0 <= a.number("moe_zero_memory_num_layers", -1) <= a.number("num_layers") // _pp(a)
        ),
        "moe/moe_zero_memory.py:29-31",
    ),
    Demand(
        "moe_zero_memory",
        "expected moe_alltoall_overlap_comm or the dualpipev schedule beside it",
        lambda a: a.get("moe_zero_memory", "disable") != "disable"
        and not a.get("moe_alltoall_overlap_comm")
        and a.get("schedules_method") != "dualpipev",
        "moe/moe_zero_memory.py:33",
    ),
    Demand(
        "moe_fb_overlap",
        "expected expert tensor parallelism 1 and ep above 1",
        lambda a: bool(a.get("moe_fb_overlap"))
        and (a.number("expert_tensor_parallel_size", 1) != 1 or a.number("expert_model_parallel_size", 1) == 1),
        "moe/fb_overlap.py:35",
    ),
    Demand(
        "moe_fb_overlap",
        "expected no pipeline, virtual stages or the dualpipev schedule",
        lambda a: bool(a.get("moe_fb_overlap"))
        and a.get("schedules_method") != "dualpipev"
        and a.get("num_layers_per_virtual_pipeline_stage") is None
        and a.number("pipeline_model_parallel_size", 1) != 1,
        "moe/fb_overlap.py:42-46",
    ),
    Demand(
        "moe_fb_overlap",
        "expected the dispatcher alltoall and moe_zero_memory other than level1",
        lambda a: bool(a.get("moe_fb_overlap"))
        and (a.get("moe_token_dispatcher_type") != "alltoall" or a.get("moe_zero_memory") == "level1"),
        "moe/fb_overlap.py:31-34",
    ),
    Demand(
        "moe_tp_extend_ep",
        "expected num_experts beside it, which verl does not give, and experts that divide by tp × ep",
        lambda a: bool(a.get("moe_tp_extend_ep"))
        and not _divides(
            a.given("num_experts"),
            a.number("tensor_model_parallel_size", 1) * a.number("expert_model_parallel_size", 1),
        ),
        "moe/tp_extend_ep.py:22, AttributeError where the key is missing",
    ),
    Demand(
        "moe_tp_extend_ep",
        "expected no moe_expert_capacity_factor",
        lambda a: bool(a.get("moe_tp_extend_ep")) and a.get("moe_expert_capacity_factor") is not None,
        "moe/tp_extend_ep.py:27",
    ),
    Demand(
        "unaligned_linear",
        "expected num_experts beside it, which verl does not give, and no experts",
        lambda a: bool(a.get("unaligned_linear")) and ("num_experts" not in a.own or a.given("num_experts") > 1),
        "tensor_parallel/unaligned_linear_feature.py:23, AttributeError where the key is missing",
    ),
    Demand(
        "reuse_fp32_param",
        "expected use_legacy_models false beside it, which verl does not give",
        lambda a: bool(a.get("reuse_fp32_param")) and a.own.get("use_legacy_models") is not False,
        "memory/reuse_fp32_param.py:21, AttributeError where the key is missing",
    ),
    Demand(
        "schedules_method",
        "dualpipev: expected overlap_grad_reduce false and untie_embeddings_and_output_weights true beside it, which "
        "verl does not give",
        lambda a: a.get("schedules_method") == "dualpipev"
        and (a.own.get("overlap_grad_reduce") is not False or not a.own.get("untie_embeddings_and_output_weights")),
        "pipeline_parallel/dualpipev_feature.py:22-25, AttributeError where a key is missing",
    ),
    Demand(
        "schedules_method",
        "dualpipev: expected no swap_attention, cp 1, pp above 1 and no virtual stages",
        lambda a: a.get("schedules_method") == "dualpipev"
        and (
            bool(a.get("swap_attention"))
            or a.number("context_parallel_size", 1) > 1
            or a.number("pipeline_model_parallel_size", 1) == 1
            or a.get("num_layers_per_virtual_pipeline_stage") is not None
        ),
        "pipeline_parallel/dualpipev_feature.py:28-39",
    ),
    Demand(
        "recompute_in_bubble",
        "expected pp above 1 with virtual stages",
        lambda a: bool(a.get("recompute_in_bubble"))
        and (
            a.number("pipeline_model_parallel_size", 1) <= 1 or a.get("num_layers_per_virtual_pipeline_stage") is None
        ),
        "pipeline_parallel/ripipe_schedules_feature.py:63",
    ),
    Demand(
        "recompute_in_advance",
        "expected a recompute_method other than uniform, pp above 1 and virtual stages",
        lambda a: bool(a.get("recompute_in_advance"))
        and (
            a.get("recompute_method") == "uniform"
            or a.number("pipeline_model_parallel_size", 1) <= 1
            or a.get("num_layers_per_virtual_pipeline_stage") is None
        ),
        "pipeline_parallel/ripipe_schedules_feature.py:92-97",
    ),
    Demand(
        "tp_2d",
        "expected tp = tp_x × tp_y, no experts, and megatron_cp_algo or ulysses_cp_algo",
        lambda a: bool(a.get("tp_2d"))
        and (
            a.get("context_parallel_algo", "megatron_cp_algo") not in ("megatron_cp_algo", "ulysses_cp_algo")
            or a.number("tp_x", 1) * a.number("tp_y", 1) != a.number("tensor_model_parallel_size", 1)
            or a.number("expert_model_parallel_size", 1) > 1
        ),
        "tensor_parallel/tp_2d.py:35-42",
    ),
    Demand(
        "pipeline_num_transformer_layers",
        "expected [[n],[n],…] with as many n as there are stages",
        lambda a: isinstance(a.get("pipeline_num_transformer_layers"), str)
        and len(re.findall(r"\[\s*\d+\s*\]", a.get("pipeline_num_transformer_layers"))) != _pp(a),
        "pipeline_parallel/unaligned_pineline_feature.py:48",
    ),
    Demand(
        "param_and_grad_buffer_pad",
        "expected more than 0",
        lambda a: a.number("param_and_grad_buffer_pad") < 0,
        "distributed/buffer_pad.py:18",
    ),
    Demand(
        "alibi_fusion_attn_type",
        "expected 0 or 2",
        lambda a: a.get("alibi_fusion_attn_type") not in (None, 0, 2),
        "transformer/flash_attention/alibi_feature.py:72",
    ),
)


def mindspeed(facts: Facts) -> Iterator[Fault]:
    """The three tables above, over the arguments that this recipe gives."""
    arguments = _arguments(facts)
    for first, second, source in INCOMPATIBLE:
        if arguments.get(first) and arguments.get(second):
            yield _fault(first, f"expected only one of {first} and {second}, found both", source)
    for first, second, source in NEEDS:
        if arguments.get(first) and not arguments.get(second):
            yield _fault(first, f"expected {second} beside {first}, found it off", source)
    for demand in DEMANDS:
        if demand.broken(arguments):
            found = f"{demand.subject}={json.dumps(arguments.get(demand.subject), default=str)}"
            yield _fault(demand.subject, f"{found}: {demand.message}", demand.source)


def recompute(facts: Facts) -> Iterator[Fault]:
    """What goes together in recomputation (core_v0.12.1, core/transformer/transformer_config.py:684-715)."""
    given, written = facts.below(OVERRIDE), f"{OVERRIDE}.recompute_method"
    granularity, method = given.get("recompute_granularity"), given.get("recompute_method")
    layers = given.get("recompute_num_layers")
    if granularity is None:
        return
    key = f"{OVERRIDE}.recompute_granularity"
    if granularity not in ("full", "selective"):
        yield Fault(key, f"{key}: expected full or selective, found {facts.shown(key)}", "use full")
    elif method not in ("block", "uniform") and (method is not None or granularity == "full"):
        yield Fault(key, f"recompute_method: expected block or uniform, found {facts.shown(written)}", "use uniform")
    elif granularity == "full" and layers is None:
        yield Fault(key, "recompute_num_layers: expected a number with full, found null", "set it to 1")
    elif granularity == "selective" and layers is not None:
        yield Fault(key, f"recompute_num_layers: expected null with selective, found {layers}", "set it to null")


def _fault(key: str, message: str, source: str) -> Fault:
    return Fault(f"{OVERRIDE}.{key}", f"{message} ({source})", "switch one of them off, or give what is asked for")


def _arguments(facts: Facts) -> Arguments:
    """Defaults of MindSpeed and Megatron, then verl's (config_converter.py:56-90), then the override."""
    defaults = {**schema.load("megatron", facts.matrix), **schema.load("mindspeed", facts.matrix)}
    sizes = {
        "tensor_model_parallel_size": facts.size("tp") or 1,
        "pipeline_model_parallel_size": facts.size("pp") or 1,
        "context_parallel_size": facts.size("cp") or 1,
        "expert_model_parallel_size": facts.size("ep") or 1,
        "expert_tensor_parallel_size": facts.layout.etp if facts.layout else 1,
        "sequence_parallel": (facts.size("tp") or 1) > 1,
        "num_layers": facts.model.layers if facts.model else 0,
        "num_attention_heads": facts.model.heads if facts.model else 0,
        "num_moe_experts": facts.model.experts if facts.model else None,
        "bf16": True,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
    }
    given = {str(key): value for key, value in facts.below(OVERRIDE).items()}
    return Arguments({key: field.default for key, field in defaults.items()}, sizes, given)
