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
from recipes.lint.rule import COMMERCIAL, CPU, NEWER, NPU, PERFORMANCE, Rule

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
    Rule("sizes.strategies", batches.strategies, "S7", matrices=(COMMERCIAL,)),
    Rule("sizes.temperature", batches.temperature, "S7"),
    Rule("sizes.data", batches.data, "S7", vary=("prompts",)),
    Rule("sizes.ray", layout.ray_devices, "C7", layout=True),
    Rule("lengths.budget", lengths.budgets, "S10"),
    Rule("lengths.context", lengths.positions, "E7"),
    Rule("lengths.chunked-prefill", lengths.chunked_prefill, "E7"),
    Rule("lengths.batched-tokens", rollout.raised_tokens, "E7", "warn", (PERFORMANCE,)),
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

ENVIRONMENT = environment.RULES

IGNORED = (
    Rule("ignored.no-effect", ignored.idle, "S10", "warn"),
    Rule("ignored.replaced", ignored.replaced, "E1", "warn"),
    Rule("ignored.harmless", ignored.harmless, "F14", "note"),
)

ROLLOUT = (
    Rule("rollout.capture-sizes", rollout.capture_sizes, "G2", "warn"),
    Rule("rollout.no-streams", rollout.no_budget, "G2"),
    Rule("rollout.sizes-are-numbers", rollout.sizes_are_numbers, "G2", matrices=NEWER),
    Rule("rollout.sizes-once", rollout.sizes_once, "G2", "warn", NEWER),
    Rule("rollout.sizes-split", rollout.sizes_split, "G2", matrices=(CPU,)),
    Rule("rollout.sizes-reach", rollout.sizes_reach, "G2", "warn", (PERFORMANCE,)),
    Rule("rollout.full-decode-only", rollout.full_decode_only, "G2", "warn", NEWER),
    Rule("rollout.graph-mode", rollout.graph_mode, "S11", matrices=NEWER),
    Rule("rollout.torchair", rollout.torchair, "S11", matrices=NEWER),
    Rule("rollout.shared-experts", rollout.shared_experts, "S12", "warn", NEWER),
    Rule("rollout.block-size", rollout.block_size, "F3", "warn", NEWER),
    Rule("rollout.batched-sequences", rollout.batched_sequences, "E7", matrices=NEWER),
    Rule("rollout.other-scheduler", rollout.other_scheduler, "F8", "warn", NEWER),
    Rule("rollout.scheduler", rollout.scheduler_config, "F8", matrices=NEWER),
    Rule("rollout.explicit-scheduler", rollout.explicit_scheduler, "F8", "warn", (PERFORMANCE,)),
    Rule("rollout.unknown-key", rollout.unknown_additional, "E1", matrices=NEWER),
    Rule("rollout.unknown-argument", rollout.unknown_argument, "E1", matrices=NEWER),
    Rule("rollout.split-heads", rollout.split_heads, "S12", matrices=NEWER),
    Rule("rollout.quantization", rollout.quantization, "E7", matrices=NEWER),
    Rule("rollout.speculation", rollout.speculation, "S11", matrices=NEWER),
    Rule("rollout.dense-experts", rollout.dense_experts, "S12"),
    Rule("rollout.data-type", rollout.data_type, "E7"),
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
    Rule("upstream.copied-samples", upstream.copied_samples, "F1", "warn", NEWER),
    Rule("upstream.resume", upstream.resume, "F2", "warn", (PERFORMANCE,)),
    Rule("upstream.lost-moments", upstream.lost_moments, "F28", "warn"),
    Rule("upstream.prefix-cache", upstream.prefix_cache, "F3", matrices=(PERFORMANCE,)),
    Rule("upstream.dummy-compile", upstream.dummy_compile, "F4", "warn", NPU),
    Rule("upstream.gathered-experts", upstream.gathered_experts, "F7"),
    Rule("upstream.drifting-experts", upstream.drifting_experts, "F29"),
    Rule("upstream.guessed-layout", upstream.guessed_layout, "F10", matrices=NEWER),
    Rule("upstream.first-rank-metrics", upstream.first_rank_metrics, "F15", "note", (COMMERCIAL,)),
    Rule("upstream.masked-ids", upstream.masked_ids, "F18", "note", NEWER),
    Rule("upstream.unwritten-rows", upstream.unwritten_rows, "F21", "note", (PERFORMANCE,)),
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

# What verl, Megatron and the engine demand at start-up, in both NPU matrices unless a rule's row says otherwise, and
# the rules that say it before.
CONSTRAINTS: dict[str, tuple[str, ...]] = {
    "devices % (tp pp cp)": ("sizes.copies",),
    "rows % (dp × micro-batch)": ("sizes.micro-batch", "sizes.micro-batch-given"),
    "batch >= mini-batch": ("sizes.mini-batch",),
    "one key for each log-prob micro-batch": ("sizes.log-prob-micro-batch",),
    "rows are dealt out to the rollout": ("sizes.batch-engines", "sizes.batch-devices"),
    "rows are balanced over devices": ("sizes.batch-devices",),
    "rows % dp": ("sizes.batch-copies", "sizes.batch-devices"),
    "rows of a copy % its mini-batch": ("sizes.mini-batch-whole", "sizes.mini-batch-floored"),
    "devices % engine": ("sizes.engines",),
    "token budget × cp >= a sequence": ("lengths.budget", "sizes.virtual-micro-batches"),
    "virtual stages": ("sizes.virtual-stages", "sizes.virtual-micro-batches"),
    "devices % (etp ep pp), experts % ep": ("sizes.expert-copies", "sizes.experts"),
    "layers over stages": ("sizes.layers",),
    "lengths of the rollout": ("sizes.engines", "lengths.context", "lengths.chunked-prefill"),
    "sizes of an engine": ("sizes.engine-experts", "sizes.engine-stages"),
    "rows % agent workers": ("sizes.agent-workers",),
    "micro-batch of reference log-probs": ("sizes.log-prob-micro-batch",),
    "micro-batch of old log-probs": ("sizes.log-prob-micro-batch",),
    "actor's and others' settings agree": ("sizes.load-weight", "sizes.strategies"),
    "a whole batch of data, enough devices": ("sizes.data", "sizes.ray", "environment.visible-devices"),
}
