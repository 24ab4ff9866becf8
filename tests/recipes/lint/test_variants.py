"""Recipes that ship pass; each with one thing broken is rejected by exactly the rule that is meant for it."""

from functools import cache

import pytest

from recipes.lint import lint, lint_facts, read
from recipes.lint.rules import RULES

SHIPPED = {
    "qwen3-235b-30k": 16,
    "qwen3-235b-30k-baseline": 48,
    "qwen3-235b-4k": 16,
    "qwen3-30b-a3b-30k": 2,
    "qwen3-moe-no-qk-norm-30k": 16,
}
BIG, SMALL, EAGER, SHORT = "qwen3-235b-30k", "qwen3-30b-a3b-30k", "qwen3-235b-30k-baseline", "qwen3-235b-4k"
P, C = "performance", "commercial"
A = "actor_rollout_ref.actor"
M = f"{A}.megatron"
T = f"{M}.override_transformer_config"
R = "actor_rollout_ref.rollout"
F = "actor_rollout_ref.ref"
V = f"{R}.engine_kwargs.vllm"
E = "launch.env"

# recipe, matrix, the change, the rule that rejects it
VARIANTS = [
    # sizes
    (BIG, P, f"{M}.tensor_model_parallel_size=0", "sizes.positive"),
    (BIG, P, "trainer.nnodes=20", "sizes.copies sizes.batch-devices"),
    (BIG, P, f"{M}.context_parallel_size=5", "sizes.copies"),
    (BIG, C, f"{M}.expert_model_parallel_size=32", "sizes.expert-copies"),
    (SHORT, P, f"{M}.expert_model_parallel_size=3", "sizes.expert-copies sizes.experts"),
    (BIG, P, f"{T}.num_layers_in_first_pipeline_stage=12", "sizes.layers"),
    (BIG, C, f"~{T}.num_layers_in_last_pipeline_stage", "sizes.layers"),
    (SMALL, P, f"{M}.virtual_pipeline_model_parallel_size=5", "sizes.virtual-stages"),
    (SMALL, P, f"{R}.tensor_model_parallel_size=3", "sizes.engines sizes.engine-heads experts.share"),
    (SMALL, P, f"{R}.tensor_model_parallel_size=64", "sizes.engines sizes.engine-heads"),
    (BIG, P, f"{R}.pipeline_model_parallel_size=2", "sizes.engine-stages"),
    (BIG, P, f"{F}.megatron.context_parallel_size=8", "sizes.reference"),
    (BIG, C, f"{F}.megatron.tensor_model_parallel_size=8", "sizes.reference"),
    (BIG, P, f"+{T}.tensor_model_parallel_size=8", "sizes.override"),
    # batches
    (BIG, P, "data.train_batch_size=400", "sizes.batch-devices"),
    (BIG, C, "data.train_batch_size=388", "sizes.batch-devices"),
    (BIG, P, f"{A}.ppo_mini_batch_size=512", "sizes.mini-batch"),
    (BIG, P, f"{A}.ppo_mini_batch_size=100", "sizes.mini-batch-whole"),
    (SHORT, C, f"{A}.ppo_micro_batch_size_per_gpu=3", "sizes.micro-batch"),
    (BIG, C, f"{A}.ppo_micro_batch_size_per_gpu=null", "sizes.micro-batch-given"),
    (BIG, P, f"{F}.log_prob_micro_batch_size_per_gpu=null", "sizes.log-prob-micro-batch"),
    (BIG, C, f"{R}.log_prob_micro_batch_size_per_gpu=null", "sizes.log-prob-micro-batch"),
    (BIG, P, f"{A}.load_weight=false", "sizes.load-weight"),
    # lengths
    (BIG, P, f"{F}.log_prob_max_token_len_per_gpu=8000", "lengths.budget"),
    (BIG, C, f"{A}.ppo_max_token_len_per_gpu=4096", "lengths.budget"),
    (
        SHORT,
        P,
        "data.max_response_length=40000",
        "lengths.context lengths.budget lengths.batched-tokens environment.patience memory.rollout-near",
    ),
    (BIG, C, f"{R}.enable_chunked_prefill=true {R}.max_num_batched_tokens=8192", "lengths.chunked-prefill"),
    (BIG, P, f"{R}.max_num_batched_tokens=8192", "lengths.batched-tokens"),
    (BIG, P, f"{R}.max_model_len=30000", "lengths.cut-answers"),
    # override_transformer_config
    (BIG, P, f"+{T}.use_fused_rmsnrom=true", "overrides.unknown"),
    (BIG, C, f"+{T}.moe_gruoped_gemm=true", "overrides.unknown"),
    (BIG, P, f"+{T}.moe_router_topk=many", "overrides.type"),
    (BIG, P, f"+{T}.context_parallel_algo=ring", "overrides.choice"),
    (BIG, P, f"{T}.context_parallel_size=2", "overrides.context-parallel"),
    (BIG, C, f"~{T}.context_parallel_size", "overrides.context-parallel"),
    (BIG, C, f"+{T}.pipeline_model_parallel_size=8", "overrides.pipeline-key"),
    (BIG, P, f"{T}.use_flash_attn=false", "overrides.flash-attention"),
    (BIG, P, f"~{T}.position_embedding_type", "overrides.conflict"),
    (BIG, P, f"+{T}.context_parallel_algo=ulysses_cp_algo", "overrides.conflict"),
    (BIG, P, f"+{T}.cp_window_size=3", "overrides.conflict"),
    (BIG, P, f"+{T}.moe_alltoall_overlap_comm=true", "overrides.conflict"),
    (BIG, P, f"+{T}.swap_optimizer=true +{T}.reuse_fp32_param=true", "overrides.conflict"),
    (BIG, P, f"+{T}.moe_tp_extend_ep=true", "overrides.conflict"),
    (BIG, P, f"+{T}.moe_permute_fusion=true +{T}.moe_token_dispatcher_type=allgather", "overrides.conflict"),
    (BIG, P, f"{T}.recompute_method=null", "overrides.recompute"),
    (BIG, P, f"{F}.megatron.override_transformer_config={{use_flash_attn:true}}", "overrides.reference"),
    (BIG, P, f"~{T}.moe_grouped_gemm", "overrides.grouped-experts"),
    # environment
    (BIG, P, f"{E}.TASK_QUEUE_ENABLE=2", "environment.task-queue"),
    (BIG, C, f"{E}.TASK_QUEUE_ENABLE=3", "environment.task-queue"),
    (BIG, P, f"{E}.VLLM_ASCEND_ENABLE_NZ=1", "environment.fractal-nz"),
    (BIG, C, f"+{E}.PYTORCH_NPU_ALLOC_CONF='expandable_segments:True'", "environment.allocator"),
    (BIG, P, f"+{E}.CUDA_DEVICE_MAX_CONNECTIONS=8", "environment.connections"),
    (BIG, P, f"+{E}.ASCEND_LAUNCH_BLOCKING=1", "environment.launch-blocking"),
    (EAGER, P, f"+{E}.ASCEND_LAUNCH_BLOCKING=1", "environment.launch-blocking-slow"),
    (BIG, P, f"+{E}.HCCL_EVENT_TIMEOUT=1800", "environment.event-timeout"),
    (BIG, P, "actor_rollout_ref.nccl_timeout=7200", "environment.group-timeout"),
    (BIG, C, f"{E}.HCCL_EXEC_TIMEOUT=600", "environment.patience"),
    (BIG, P, f"{E}.HCCL_CONNECT_TIMEOUT=120", "environment.connect-timeout"),
    (BIG, P, f"{E}.HCCL_ASYNC_ERROR_HANDLING=1", "environment.error-handling"),
    (BIG, P, f"{E}.LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "environment.jemalloc"),
    (BIG, P, f"+{E}.ASCEND_RT_VISIBLE_DEVICES='0,1,2,3'", "environment.visible-devices"),
    (BIG, P, f"+{E}.VLLM_USE_V1=0", "environment.v1-engine"),
    (BIG, P, f"+{E}.HCCL_BUFFSIZE=200MB", "environment.numbers"),
    (BIG, P, f"+{E}.CPU_AFFINITY_CONF=2", "environment.affinity"),
    # rollout
    (BIG, P, "launch.rollout.capture_sizes=[1,2,4,8,16,32,64]", "rollout.capture-sizes"),
    (BIG, P, "launch.rollout.capture_sizes=[1,2,2]", "rollout.sizes-once rollout.sizes-reach"),
    (BIG, P, "launch.rollout.capture_sizes=[1,2,4,8,16]", "rollout.sizes-reach"),
    (BIG, P, f"+{V}.compilation_config.cudagraph_mode=FULL_DECODE_ONLY", "rollout.full-decode-only"),
    (BIG, P, f"+{V}.compilation_config.cudagraph_mode=FULL", "rollout.graph-mode"),
    (BIG, P, f"+{V}.compilation_config.level=2", "rollout.graph-mode"),
    (EAGER, P, f"+{V}.additional_config.torchair_graph_config.enabled=true", "rollout.torchair"),
    (BIG, P, f"+{V}.additional_config.torchair_graph_config.mode=max-autotune", "rollout.torchair"),
    (BIG, P, f"+{V}.additional_config.ascend_scheduler_config.policy=priority", "rollout.scheduler"),
    (BIG, P, f"{V}.additional_config.ascend_scheduler_config.enabled=false", "rollout.explicit-scheduler"),
    (BIG, P, f"+{V}.additional_config.ascend_schedular_config.enabled=true", "rollout.unknown-key"),
    (BIG, P, f"+{V}.additional_config.lmhead_tensor_parallel_size=2", "rollout.split-heads"),
    (BIG, P, f"+{V}.quantization=fp8", "rollout.quantization"),
    (BIG, P, f"{R}.dtype=float32", "rollout.data-type"),
    (BIG, P, f"{R}.data_parallel_size=2", "rollout.duplicates"),
    (BIG, P, f"{R}.mode=async", "rollout.async"),
    (BIG, C, f"+{V}.enable_expert_parallel=true", "rollout.plugin-argument"),
    (BIG, P, f"+{V}.max_model_len=32768", "rollout.argument-twice"),
    (BIG, C, "launch.rollout.data_parallel=6", "experts.world experts.share"),
    (BIG, C, "launch.rollout.data_parallel=16", "experts.world experts.large"),
    (BIG, C, f"{R}.max_num_seqs=4096", "experts.buffer memory.rollout-near"),
    # keys that do nothing
    (BIG, P, f"{M}.grad_offload=true", "ignored.no-effect"),
    (BIG, P, f"{R}.cudagraph_capture_sizes=[1,2,4]", "ignored.no-effect"),
    (BIG, P, f"{R}.expert_parallel_size=16", "ignored.no-effect"),
    (BIG, P, f"{R}.log_prob_use_dynamic_bsz=false", "ignored.no-effect"),
    # faults of the pinned commits
    (BIG, P, f"+{E}.VERL_ROLLOUT_INTERLEAVE=0", "upstream.equal-samples"),
    (BIG, P, f"{R}.enable_prefix_caching=true", "upstream.prefix-cache"),
    (SMALL, P, f"{M}.expert_model_parallel_size=1", "upstream.gathered-experts memory.update"),
    # memory
    (SHORT, P, f"{M}.expert_tensor_parallel_size=1", "memory.update"),
    (BIG, C, "launch.rollout.data_parallel=1", "memory.rollout"),
    (BIG, P, f"{R}.log_prob_max_token_len_per_gpu=131072", "memory.log-prob"),
    (SHORT, C, f"{M}.optimizer_offload=false", "memory.utilization"),
    (BIG, P, f"{R}.free_cache_engine=false", "memory.sleep"),
    (BIG, P, f"{R}.gpu_memory_utilization=1.5", "memory.utilization"),
    (BIG, P, f"{R}.max_num_seqs=1024", "memory.rollout-near rollout.sizes-reach"),
    # arguments of the engine, as vLLM and vllm-ascend take them
    (BIG, P, "launch.rollout.capture_sizes=[64,many]", "rollout.sizes-are-numbers"),
    (BIG, P, "launch.rollout.capture_sizes=null", "rollout.capture-sizes"),
    (BIG, P, f"+{V}.speculative_config={{method:ngram,num_speculative_tokens:2}}", "rollout.capture-sizes"),
    (BIG, P, f"+{V}.enable_expert_paralel=true", "rollout.unknown-argument"),
    (BIG, P, f"+{V}.compilation_config.capture_sizes=[1,2]", "rollout.unknown-argument"),
    (BIG, P, f"{R}.max_num_seqs=32769", "rollout.batched-sequences rollout.sizes-reach memory.rollout-near"),
    (BIG, P, f"{R}.max_model_len=50000", "lengths.context lengths.batched-tokens memory.rollout-near"),
    (
        BIG,
        P,
        f"+{V}.async_scheduling=true +{V}.speculative_config={{method:ngram,num_speculative_tokens:2}}",
        "rollout.speculation rollout.capture-sizes",
    ),
]


@cache
def standing(name: str, matrix: str) -> frozenset[str]:
    """The findings of the recipe as it is."""
    facts, _, _ = read(name, matrix)
    return frozenset(finding.id for finding in lint_facts(facts))


@pytest.mark.parametrize("matrix", [P, C])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_passes_and_says_how_few_nodes_it_takes(name, matrix):
    report = lint(name, matrix)
    assert [finding for finding in report.findings if finding.level == "fail"] == []
    assert report.legal[0] == SHIPPED[name] and report.nodes in report.legal


@pytest.mark.parametrize(("name", "matrix", "change", "rules"), VARIANTS, ids=[f"{v[1]}-{v[2]}" for v in VARIANTS])
def test_one_change_is_rejected_by_the_rule_meant_for_it(name, matrix, change, rules):
    facts, _, faults = read(name, matrix, settings=change.split())
    assert not faults
    found = [finding for finding in lint_facts(facts) if finding.id not in standing(name, matrix)]
    assert {finding.rule for finding in found if finding.level != "note"} == set(rules.split())
    for finding in found:
        assert finding.message and finding.remedy and finding.problem
        assert "None" not in finding.message


def test_most_variants_name_a_single_rule():
    assert sum(len(rules.split()) == 1 for _, _, _, rules in VARIANTS) >= 45


def test_rules_have_ids_of_their_own_and_say_where_they_come_from():
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.check.__doc__


def test_a_field_of_megatron_takes_what_megatron_declares():
    _, _, faults = read(SMALL, P, settings=[f"{T}.num_layers_in_first_pipeline_stage=null"])
    assert not faults
