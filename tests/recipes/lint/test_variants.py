"""Recipes that ship pass; each with one thing broken is rejected by exactly the rule that is meant for it."""

import re
from functools import cache
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from recipes.lint import lint, lint_facts, read
from recipes.lint.rule import COMMERCIAL, NPU, PERFORMANCE
from recipes.lint.rules import CONSTRAINTS, RULES
from recipes.lint.rules import __file__ as rules_file

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
D = f"{V}.additional_config"
E = "launch.env"


def model(**sizes: int) -> str:
    """The setting that gives a recipe another model: Qwen3-30B-A3B but for some sizes."""
    given = {"num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4}
    given |= {"head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8}
    given |= {"moe_intermediate_size": 768, "intermediate_size": 6144, "max_position_embeddings": 40960, **sizes}
    return "+launch.model={" + ",".join(f"{name}:{value}" for name, value in given.items()) + "}"


# recipe with settings that it has before, matrix, the change, the rules that reject it; notes only where they are meant
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
    (SMALL, P, f"{M}.tensor_model_parallel_size=8 trainer.nnodes=4", "sizes.heads"),
    (SMALL, P, f"{R}.tensor_model_parallel_size=3", "sizes.engines sizes.engine-heads experts.share"),
    (SMALL, P, f"{R}.tensor_model_parallel_size=64", "sizes.engines sizes.engine-heads"),
    (BIG, P, f"{R}.pipeline_model_parallel_size=2", "sizes.engine-stages"),
    (BIG, P, f"{R}.expert_parallel_size=8", "sizes.engine-experts ignored.no-effect"),
    (BIG, P, "trainer.n_gpus_per_node=16", "sizes.ray"),
    (BIG, C, "ray_init.num_cpus=8", "sizes.ray"),
    (BIG, P, "+ray_kwargs.ray_init.address=local", "sizes.ray"),
    (BIG, C, "critic.strategy=fsdp", "sizes.strategies"),
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
    (
        f"{BIG} trainer.balance_batch=false {R}.n=1",
        P,
        f"data.train_batch_size=387 {A}.ppo_mini_batch_size=387",
        "sizes.batch-engines",
    ),
    (
        f"{SMALL} trainer.balance_batch=false {R}.n=1 {R}.tensor_model_parallel_size=32 trainer.nnodes=4",
        P,
        f"data.train_batch_size=127 {A}.ppo_mini_batch_size=127",
        "sizes.batch-copies",
    ),
    (f"{BIG} {R}.n=5", C, f"{A}.ppo_mini_batch_size=1", "sizes.mini-batch-floored"),
    (
        f"{SMALL} {M}.virtual_pipeline_model_parallel_size=2 {R}.n=1",
        P,
        f"{A}.ppo_mini_batch_size=1",
        "sizes.virtual-micro-batches",
    ),
    (f"{SMALL} {R}.mode=async", C, f"{R}.agent.num_workers=7", "sizes.agent-workers"),
    (f"{SMALL} {R}.val_kwargs.do_sample=true", P, f"{R}.temperature=0", "sizes.temperature"),
    (SMALL, P, "data.train_files=ROWS-100", "sizes.data"),
    (SMALL, C, "data.train_files=[ROWS-100,ROWS-20]", "sizes.data"),
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
    (BIG, P, f"+{T}.gemm_gradient_accumulation_fusion=true", "overrides.no-effect"),
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
    (BIG, P, f"{E}.LD_PRELOAD='$JEMALLOC'", "environment.preload"),
    (EAGER, P, f"{E}.TASK_QUEUE_ENABLE=1", "environment.task-queue-eager"),
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
    (
        SMALL,
        P,
        model(num_hidden_layers=1000, hidden_size=256, head_dim=8, moe_intermediate_size=96),
        "rollout.no-streams",
    ),
    (
        f"{SMALL} {V}.enable_expert_parallel=false",
        P,
        f"+{D}.enable_shared_expert_dp=true",
        "rollout.shared-experts",
    ),
    (f"{BIG} {R}.enable_prefix_caching=true", P, f"+{V}.block_size=64", "rollout.block-size"),
    (f"{BIG} {D}.ascend_scheduler_config.enabled=false", P, f"+{V}.async_scheduling=true", "rollout.other-scheduler"),
    (f"{SMALL} {M}.expert_model_parallel_size=1", P, model(num_experts=0), "rollout.dense-experts"),
    (f"{BIG} {model(num_hidden_layers=94)}", P, "++launch.model.num_experts_per_tok=17", "experts.shape"),
    (BIG, C, f"+{V}.enable_expert_parallel=true", "rollout.plugin-argument"),
    (BIG, P, f"+{V}.max_model_len=32768", "rollout.argument-twice"),
    (BIG, C, "launch.rollout.data_parallel=6", "experts.world experts.share"),
    (BIG, C, "launch.rollout.data_parallel=16", "experts.world experts.large"),
    (BIG, C, f"{R}.max_num_seqs=4096", "experts.buffer memory.rollout-near"),
    (
        f"smoke {R}.tensor_model_parallel_size=2 +{V}.compilation_config.pass_config.enable_sequence_parallelism=true",
        "cpu",
        f"{V}.compilation_config.cudagraph_capture_sizes=[3,33]",
        "rollout.sizes-split",
    ),
    (BIG, P, f"{R}.tensor_model_parallel_size=8", "upstream.unwritten-rows memory.rollout"),
    # keys that do nothing
    (BIG, P, f"{M}.grad_offload=true", "ignored.no-effect"),
    (BIG, P, f"{R}.cudagraph_capture_sizes=[1,2,4]", "ignored.no-effect"),
    (BIG, P, f"{R}.expert_parallel_size=16", "ignored.no-effect"),
    (BIG, P, f"{R}.log_prob_use_dynamic_bsz=false", "ignored.no-effect"),
    (BIG, P, "reward_model.megatron.override_transformer_config={}", "ignored.replaced"),
    (BIG, C, "critic.megatron.override_ddp_config={}", "ignored.replaced"),
    (
        f"{BIG} {F}.megatron.use_distributed_optimizer=false",
        C,
        f"{F}.megatron.use_distributed_optimizer=true",
        "ignored.harmless",
    ),
    # faults of the pinned commits
    (f"{BIG} {E}.VERL_ROLLOUT_INTERLEAVE=1", P, f"{E}.VERL_ROLLOUT_INTERLEAVE=0", "upstream.copied-samples"),
    (
        f"{SMALL} {E}.VERL_ROLLOUT_INTERLEAVE=1 {R}.n=64",
        P,
        f"data.train_batch_size=2 {A}.ppo_mini_batch_size=2",
        "upstream.equal-samples",
    ),
    (BIG, P, f"{R}.enable_prefix_caching=true", "upstream.prefix-cache"),
    *(
        (
            SMALL,
            matrix,
            f"{M}.expert_model_parallel_size=1",
            "upstream.gathered-experts upstream.drifting-experts memory.update",
        )
        for matrix in (P, C)
    ),
    (
        f"{SMALL} {M}.expert_model_parallel_size=1 {M}.expert_tensor_parallel_size=4",
        C,
        f"{M}.expert_tensor_parallel_size=8",
        "upstream.gathered-experts",
    ),
    (SMALL, P, model(hidden_size=1536), "upstream.guessed-layout"),
    (f"{BIG} trainer.resume_mode=disable", P, "trainer.resume_mode=auto", "upstream.resume upstream.lost-moments"),
    (f"{BIG} trainer.resume_mode=disable", C, "trainer.resume_mode=auto", "upstream.lost-moments"),
    (f"{SMALL} trainer.save_freq=-1", C, "trainer.resume_mode=resume_path", "upstream.lost-moments"),
    (f"{EAGER} {E}.TASK_QUEUE_ENABLE=1", P, f"{R}.enforce_eager=false", "upstream.dummy-compile"),
    (SMALL, C, "trainer.nnodes=4", "upstream.first-rank-metrics"),
    (f"{SMALL} {R}.mode=async", P, f"{R}.calculate_log_probs=true", "upstream.masked-ids"),
    (SHORT, C, f"{M}.expert_tensor_parallel_size=null", "upstream.implied-expert-tp"),
    (
        f"{SMALL} actor_rollout_ref.model.path=/models/new",
        P,
        "actor_rollout_ref.model.path=/models/Qwen3-30B-A3B",
        "upstream.logged-entropy memory.host memory.terms",
    ),
    # memory
    (SHORT, P, f"{M}.expert_tensor_parallel_size=1", "memory.update"),
    (BIG, P, f"{A}.ppo_max_token_len_per_gpu=131072", "memory.update-near"),
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

# Every patch that a remedy may name.
PATCHES = {
    "verl/async-non-block", "verl/batch-layout", "verl/capture-sizes", "verl/expert-gather", "verl/index-first-axis",
    "verl/log-prob-entropy", "verl/metrics-all-ranks", "verl/real-compile", "verl/resume-moments",
    "verl/rollout-seeds", "verl/tensordict-sync", "mindspeed/extra-state", "mindspeed/full-args",
    "mindspeed/p2p-guard", "megatron/thd-rope", "torch/shard-validation", "vllm-ascend/attention-state",
    "vllm-ascend/moe-layout", "vllm-ascend/torch-npu-pin",
}  # fmt: skip


@cache
def standing(recipe: str, matrix: str) -> frozenset[str]:
    """The findings of a recipe as it is, or with the settings after its name."""
    name, *settings = recipe.split()
    facts, _, _ = read(name, matrix, settings=settings)
    return frozenset(finding.id for finding in lint_facts(facts))


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """A folder with parquet files of 20 and of 100 rows."""
    folder = tmp_path_factory.mktemp("data")
    for count in (20, 100):
        pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a"] * count}), folder / f"ROWS-{count}")
    return folder


@pytest.mark.parametrize("matrix", [P, C])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_passes_and_says_how_few_nodes_it_takes(name, matrix):
    report = lint(name, matrix)
    assert [finding for finding in report.findings if finding.level == "fail"] == []
    assert report.legal[0] == SHIPPED[name] and report.nodes in report.legal


@pytest.mark.parametrize(("recipe", "matrix", "change", "rules"), VARIANTS, ids=[f"{v[1]}-{v[2]}" for v in VARIANTS])
def test_one_change_is_rejected_by_the_rule_meant_for_it(recipe, matrix, change, rules, rows):
    name, *before = recipe.split()
    facts, _, faults = read(name, matrix, settings=[*before, *change.replace("ROWS", f"{rows}/ROWS").split()])
    assert not faults
    found = [finding for finding in lint_facts(facts) if finding.id not in standing(recipe, matrix)]
    meant = set(rules.split())
    assert {finding.rule for finding in found if finding.level != "note" or finding.rule in meant} == meant
    for finding in found:
        assert finding.message and finding.remedy and finding.problem
        assert "None" not in finding.message


def test_patches_are_called_by_their_names():
    texts = [file.read_text(encoding="utf-8") for file in sorted(Path(rules_file).parent.glob("*.py"))]
    named = set(re.findall(r"\bpatch(?:es)? ([a-z]+(?:-[a-z]+)*/[a-z0-9-]+)", " ".join(texts)))
    named |= set(re.findall(r"\bapply ([a-z]+(?:-[a-z]+)*/[a-z0-9-]+)", " ".join(texts)))
    assert len(named) > 8 and named <= PATCHES


def test_no_rule_is_without_a_variant_that_it_rejects():
    rejected = {rule for _, _, _, rules in VARIANTS for rule in rules.split()}
    assert {rule.id for rule in RULES} - rejected == set()
    assert rejected - {rule.id for rule in RULES} == set()


def test_each_constraint_of_the_start_up_has_rules_in_both_matrices():
    holds = {rule.id: rule.matrices for rule in RULES if rule.level in ("fail", "warn")}
    assert len(CONSTRAINTS) == 20
    only = {"sizes of an engine": {PERFORMANCE}}  # verl 796871d does not ask
    for constraint, rules in CONSTRAINTS.items():
        reached = {matrix for rule in rules for matrix in holds[rule]} & set(NPU)
        assert reached == only.get(constraint, set(NPU)), constraint


def test_data_that_fill_a_batch_or_are_not_there_pass(rows):
    for files in (f"[{rows}/ROWS-100,{rows}/ROWS-100]", f"[{rows}/ROWS-20,{rows}/none]", f"{rows}"):
        facts, _, faults = read(SMALL, COMMERCIAL, settings=[f"data.train_files={files}"])
        assert not faults
        assert "sizes.data" not in {finding.rule for finding in lint_facts(facts)}, files


@pytest.mark.parametrize("settings", [
    "actor_rollout_ref.model.external_lib=rl_plugins",
    "actor_rollout_ref.model.external_lib=[transformers,rl_plugins]",
    f"{A}.checkpoint.load_contents=[model,extra]",
    "trainer.save_freq=-1",
])  # fmt: skip
def test_moments_are_not_lost_where_they_are_made_or_not_asked_for(settings):
    facts, _, _ = read(SMALL, P, settings=settings.split())
    assert "upstream.lost-moments" not in {finding.rule for finding in lint_facts(facts)}


def test_memory_counts_the_tokens_by_which_packing_overshoots():
    def terms(*settings: str) -> str:
        facts, _, _ = read(BIG, P, settings=settings)
        return next(finding.message for finding in lint_facts(facts) if finding.rule == "memory.terms")

    def logits(message: str) -> float:
        return float(re.search(r"logits ([\d.]+)", message)[1])

    packed, whole = terms(), terms(f"{A}.use_dynamic_bsz=false", f"{A}.ppo_micro_batch_size_per_gpu=2")
    assert "16384 × 1.07" in packed and "1.07" not in whole
    # two sequences of 32768 tokens over cp 4 are 16384 tokens an NPU, exactly
    assert logits(packed) == pytest.approx(1.07 * logits(whole), rel=0.02)


def test_most_variants_name_a_single_rule():
    assert sum(len(rules.split()) == 1 for _, _, _, rules in VARIANTS) >= 60


def test_rules_have_ids_of_their_own_and_say_where_they_come_from():
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.check.__doc__


def test_a_field_of_megatron_takes_what_megatron_declares():
    _, _, faults = read(SMALL, P, settings=[f"{T}.num_layers_in_first_pipeline_stage=null"])
    assert not faults
