"""The table of rules. What a rule looks at, and where in the sources it comes from, is its function's docstring."""

from recipes.lint import batches, conflicts, environment, layout, lengths, overrides
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

RULES = (*SIZES, *OVERRIDES, *ENVIRONMENT)
