"""The table of rules. What a rule looks at, and where in the sources it comes from, is its function's docstring."""

from recipes.lint import (
    batches,
    conflicts,
    environment,
    experts,
    ignored,
    layout,
    lengths,
    memory,
    overrides,
    rollout,
    upstream,
)
from recipes.lint.rule import COMMERCIAL, NEWER, NPU, PERFORMANCE, Rule

SIZES = (
    Rule("sizes.positive", layout.positive, "S7"),
    Rule("sizes.copies", layout.copies, "E4", vary=("nodes", "pp", "cp", "tp"), layout=True),
    Rule("sizes.expert-copies", layout.expert_copies, "E4", vary=("ep", "etp", "nodes"), layout=True),
    Rule("sizes.experts", layout.experts, "E4", vary=("ep",)),
    Rule("sizes.layers", layout.layers, "E4", vary=("pp",)),
    Rule("sizes.virtual-stages", layout.virtual_stages, "E4", vary=("vpp",)),
    Rule("sizes.heads", layout.heads, "E4", vary=("tp",)),
    Rule("sizes.engines", layout.engines, "E6", vary=("rollout_tp", "nodes"), layout=True),
    Rule("sizes.engine-heads", layout.engine_heads, "E6", vary=("rollout_tp",)),
    Rule("sizes.engine-stages", layout.engine_stages, "E6", matrices=NEWER),
    Rule("sizes.engine-experts", layout.engine_experts, "E6", matrices=NEWER),
    Rule("sizes.reference", layout.reference, "S3", "warn"),
    Rule("sizes.override", layout.override_sizes, "S3"),
    Rule("sizes.batch-devices", batches.devices, "S7", vary=("prompts", "samples", "nodes"), layout=True),
    Rule("sizes.batch-engines", batches.engines, "S7", matrices=NEWER, vary=("prompts", "samples"), layout=True),
    Rule("sizes.batch-copies", batches.copies, "S7", vary=("prompts", "samples"), layout=True),
    Rule("sizes.micro-batch", batches.micro, "S7", vary=("micro", "prompts"), layout=True),
    Rule("sizes.micro-batch-given", batches.micro_given, "S7"),
    Rule("sizes.mini-batch", batches.mini, "S7", vary=("mini",)),
    Rule("sizes.mini-batch-whole", batches.whole, "S7", vary=("mini", "prompts"), layout=True),
    Rule("sizes.mini-batch-floored", batches.floored, "S7", "warn", vary=("mini",), layout=True),
    Rule("sizes.virtual-micro-batches", batches.virtual, "S7", vary=("mini", "vpp"), layout=True),
    Rule("sizes.log-prob-micro-batch", batches.log_prob_micro, "S7"),
    Rule("sizes.agent-workers", batches.agent_workers, "E5", vary=("workers",)),
    Rule("sizes.load-weight", batches.load_weight, "S7"),
    Rule("sizes.temperature", batches.temperature, "S7"),
    Rule("lengths.budget", lengths.budgets, "S10"),
    Rule("lengths.context", lengths.positions, "E7"),
    Rule("lengths.chunked-prefill", lengths.chunked_prefill, "E7"),
    Rule("lengths.batched-tokens", lengths.batched_tokens, "E7", "warn", NEWER),
    Rule("lengths.cut-answers", lengths.cut_answers, "E7", "warn"),
)

OVERRIDES = (
    Rule("overrides.unknown", overrides.unknown, "E14"),
    Rule("overrides.type", overrides.wrong_type, "E14"),
    Rule("overrides.choice", overrides.wrong_choice, "E14"),
    Rule("overrides.context-parallel", overrides.context_parallel, "S3", matrices=NPU),
    Rule("overrides.pipeline-key", overrides.pipeline_key, "S9", matrices=(COMMERCIAL,)),
    Rule("overrides.flash-attention", overrides.flash_attention, "F13", matrices=NPU),
    Rule("overrides.conflict", conflicts.mindspeed, "F13", matrices=(PERFORMANCE,)),
    Rule("overrides.recompute", conflicts.recompute, "E14"),
    Rule("overrides.reference", overrides.on_reference, "S3"),
    Rule("overrides.grouped-experts", overrides.grouped_experts, "F6", "warn", (PERFORMANCE,)),
    Rule("overrides.no-effect", overrides.no_effect, "F14", "note", NPU),
)

ENVIRONMENT = (
    Rule("environment.task-queue", environment.task_queue, "F12"),
    Rule("environment.task-queue-eager", environment.task_queue_eager, "F12", "note", NPU),
    Rule("environment.fractal-nz", environment.fractal_nz, "F11", matrices=NEWER),
    Rule("environment.allocator", environment.allocator, "D5", matrices=NPU),
    Rule("environment.connections", environment.connections, "E8", "warn"),
    Rule("environment.launch-blocking", environment.launch_blocking, "G1"),
    Rule("environment.launch-blocking-slow", environment.launch_blocking_slow, "G1", "warn"),
    Rule("environment.event-timeout", environment.event_timeout, "S1", "warn"),
    Rule("environment.group-timeout", environment.group_timeout, "S1", "warn", NPU),
    Rule("environment.patience", environment.patience, "S1", "warn", NPU),
    Rule("environment.connect-timeout", environment.connect_timeout, "C3", "warn", NPU),
    Rule("environment.error-handling", environment.blocking_wait, "S1", "warn", NPU),
    Rule("environment.jemalloc", environment.jemalloc, "I4", "warn", NPU),
    Rule("environment.preload", environment.preload, "I4"),
    Rule("environment.visible-devices", environment.visible, "C7"),
    Rule("environment.v1-engine", environment.v1_engine, "E12"),
    Rule("environment.numbers", environment.numbers, "S1"),
    Rule("environment.affinity", environment.shared_affinity, "I4", "warn", NPU),
)

IGNORED = (
    Rule("ignored.no-effect", ignored.idle, "S10", "warn"),
    Rule("ignored.replaced", ignored.replaced, "E1", "warn"),
    Rule("ignored.harmless", ignored.harmless, "F14", "note"),
)

ROLLOUT = (
    Rule("rollout.capture-sizes", rollout.capture_sizes, "G2", "warn", NPU),
    Rule("rollout.no-streams", rollout.no_budget, "G2", matrices=NPU),
    Rule("rollout.sizes-are-numbers", rollout.sizes_are_numbers, "G2", matrices=NEWER),
    Rule("rollout.sizes-reach", rollout.sizes_reach, "G2", "warn", (PERFORMANCE,)),
    Rule("rollout.full-decode-only", rollout.full_decode_only, "G2", "warn", NEWER),
    Rule("rollout.graph-mode", rollout.graph_mode, "S11", matrices=NEWER),
    Rule("rollout.torchair", rollout.torchair, "S11", matrices=NEWER),
    Rule("rollout.shared-experts", rollout.shared_experts, "S12", "warn", NEWER),
    Rule("rollout.block-size", rollout.block_size, "F3", "warn", NEWER),
    Rule("rollout.other-scheduler", rollout.other_scheduler, "F8", "warn", NEWER),
    Rule("rollout.scheduler", rollout.scheduler_config, "F8", matrices=NEWER),
    Rule("rollout.explicit-scheduler", rollout.explicit_scheduler, "F8", "warn", (PERFORMANCE,)),
    Rule("rollout.unknown-key", rollout.unknown_additional, "E1", matrices=NEWER),
    Rule("rollout.split-heads", rollout.split_heads, "S12", matrices=NEWER),
    Rule("rollout.quantization", rollout.quantization, "E7", matrices=NEWER),
    Rule("rollout.dense-experts", rollout.dense_experts, "S12"),
    Rule("rollout.data-type", rollout.data_type, "E7", matrices=NPU),
    Rule("rollout.duplicates", rollout.duplicate_generation, "S12", matrices=NEWER),
    Rule("rollout.async", rollout.asynchronous, "F9", matrices=NEWER),
    Rule("rollout.plugin-argument", rollout.plugin_collision, "E1", matrices=(COMMERCIAL,)),
    Rule("rollout.argument-twice", rollout.passed_twice, "E1", matrices=NEWER),
    Rule("experts.world", experts.world, "E10", matrices=NPU),
    Rule("experts.share", experts.share, "E10"),
    Rule("experts.shape", experts.shape, "E10", matrices=NPU),
    Rule("experts.buffer", experts.buffer, "E11", matrices=NPU),
    Rule("experts.large", experts.large, "S12", "warn", NPU),
)

UPSTREAM = (
    Rule("upstream.equal-samples", upstream.equal_samples, "F1", matrices=NEWER),
    Rule("upstream.filtered-groups", upstream.filtered_groups, "S2"),
    Rule("upstream.resume", upstream.resume, "F2", "warn", (PERFORMANCE,)),
    Rule("upstream.prefix-cache", upstream.prefix_cache, "F3", matrices=(PERFORMANCE,)),
    Rule("upstream.dummy-compile", upstream.dummy_compile, "F4", "warn", NPU),
    Rule("upstream.gathered-experts", upstream.gathered_experts, "F7", matrices=NEWER),
    Rule("upstream.guessed-layout", upstream.guessed_layout, "F10", matrices=NEWER),
    Rule("upstream.first-rank-metrics", upstream.first_rank_metrics, "F15", "note", (COMMERCIAL,)),
    Rule("upstream.masked-ids", upstream.masked_ids, "F18", "note", NEWER),
    Rule("upstream.logged-entropy", upstream.logged_entropy, "F22", "note", NPU),
    Rule("upstream.implied-expert-tp", upstream.implied_expert_tp, "F24", "note", NPU),
)

MEMORY = (
    Rule("memory.update", memory.update, "D9", layout=True),
    Rule("memory.log-prob", memory.log_prob, "S10", layout=True),
    Rule("memory.rollout", memory.rollout, "F23"),
    Rule("memory.utilization", memory.utilization, "D1", matrices=NPU),
    Rule("memory.sleep", memory.sleep, "D1", matrices=NPU),
    Rule("memory.update-near", memory.update_near, "D9", "warn", NPU),
    Rule("memory.rollout-near", memory.rollout_near, "I2", "warn", NPU),
    Rule("memory.host", memory.host, "F26", "note", NPU),
    Rule("memory.terms", memory.terms_of, "D9", "note", NPU),
)

# F1 first: it costs everything and says nothing.
RULES = (*UPSTREAM, *SIZES, *OVERRIDES, *ENVIRONMENT, *ROLLOUT, *IGNORED, *MEMORY)
