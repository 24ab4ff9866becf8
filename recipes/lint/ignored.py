"""Keys that are accepted and do nothing where they stand, and overrides that replace what they were to add to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from recipes.lint.facts import ACTOR, ENGINE, REF, ROLLOUT, Facts
from recipes.lint.rule import ALL, COMMERCIAL, NEWER, NPU, PERFORMANCE, Fault


@dataclass(frozen=True)
class Idle:
    """A key that nobody reads under a condition."""

    key: str
    idle: Callable[[Facts], bool]
    why: str
    remedy: str
    matrices: tuple[str, ...] = ALL


def _set(key: str) -> Callable[[Facts], bool]:
    """Whether the recipe says something else than verl's default."""
    return lambda facts: facts.written.get(key) != facts.inherited.get(key) and facts.get(key) is not None


def _budget_without(switch: str, key: str) -> Callable[[Facts], bool]:
    return lambda facts: not facts.is_on(switch) and _set(key)(facts)


DYNAMIC = f"{ACTOR}.use_dynamic_bsz"
SIZES = f"{ROLLOUT}.cudagraph_capture_sizes"
IDLE = (
    Idle(
        f"{ACTOR}.megatron.grad_offload",
        lambda facts: facts.is_on(f"{ACTOR}.megatron.grad_offload"),
        "it is stored and never read (verl 21271aa, workers/megatron_workers.py:275; 796871d: 236); gradients "
        "leave the device with param_offload",
        f"use {ACTOR}.megatron.param_offload",
    ),
    Idle(
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        _budget_without(DYNAMIC, f"{ACTOR}.ppo_max_token_len_per_gpu"),
        f"token budgets count with {DYNAMIC} only",
        f"set {DYNAMIC} to true",
    ),
    Idle(
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        _budget_without(f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{ROLLOUT}.log_prob_max_token_len_per_gpu"),
        f"token budgets count with {ROLLOUT}.log_prob_use_dynamic_bsz only, by default {DYNAMIC}",
        "set that to true",
    ),
    Idle(
        f"{REF}.log_prob_max_token_len_per_gpu",
        _budget_without(f"{REF}.log_prob_use_dynamic_bsz", f"{REF}.log_prob_max_token_len_per_gpu"),
        f"token budgets count with {REF}.log_prob_use_dynamic_bsz only, by default {DYNAMIC}",
        "set that to true",
    ),
    Idle(
        SIZES,
        lambda facts: facts.get(SIZES) is not None and facts.mode != "async",
        "the check wants OmegaConf's list and finds Python's, warns and goes on without (verl 21271aa, workers/rollout/"
        "vllm_rollout/vllm_rollout_spmd.py:185-190)",
        f"write +{ROLLOUT}.engine_kwargs.vllm.compilation_config.cudagraph_capture_sizes, or apply the patch "
        "verl/capture-sizes",
        NEWER,
    ),
    Idle(
        f"{ROLLOUT}.expert_parallel_size",
        lambda facts: facts.mode == "sync" and (facts.size(f"{ROLLOUT}.expert_parallel_size") or 1) > 1,
        "synchronous rollouts never read it (verl 21271aa: vllm_async_server.py:226 alone does)",
        f"write +{ROLLOUT}.engine_kwargs.vllm.enable_expert_parallel=true",
        NEWER,
    ),
    Idle(
        f"{ACTOR}.megatron.sequence_parallel",
        lambda facts: facts.get(f"{ACTOR}.megatron.sequence_parallel") is False and (facts.size("tp") or 1) > 1,
        "TransformerConfig gets tp > 1 whatever it says (verl 21271aa, models/mcore/config_converter.py:85)",
        "leave it at true",
    ),
    Idle(
        f"{ROLLOUT}.enable_chunked_prefill",
        lambda facts: facts.is_on(f"{ROLLOUT}.enable_chunked_prefill") and not _chunks(facts),
        "vllm-ascend 15b2e5c turns it off for models without latent attention (platform.py:136-161, R12)",
        "set it to false; additional_config.ascend_scheduler_config.enable_chunked_prefill switches it on",
        (PERFORMANCE,),
    ),
    Idle(
        f"{ROLLOUT}.agent.num_workers",
        lambda facts: facts.mode == "sync" and _set(f"{ROLLOUT}.agent.num_workers")(facts),
        "agent workers exist in asynchronous rollouts only",
        "remove it",
    ),
    Idle(
        "ray_kwargs.ray_init.runtime_env.env_vars",
        lambda facts: bool(facts.below("ray_kwargs.ray_init.runtime_env.env_vars")),
        "verl 796871d has no ray_kwargs: variables have to be there before Ray is started",
        "move them to launch.env",
        (COMMERCIAL,),
    ),
)

# The same, where knowing is enough: recipes write these on purpose, as they are recommended.
HARMLESS = (
    Idle(
        f"{REF}.megatron.use_distributed_optimizer",
        lambda facts: facts.is_on(f"{REF}.megatron.use_distributed_optimizer")
        and f"{REF}.megatron.use_distributed_optimizer" in facts.written
        and facts.has_reference,
        "the reference model is built without an optimizer (wrap_with_ddp=False)",
        "nothing: it is harmless",
        NPU,
    ),
)


def idle(facts: Facts) -> Iterator[Fault]:
    """Keys that somebody wrote to change something, and which change nothing; see IDLE."""
    yield from _idle(facts, IDLE)


def harmless(facts: Facts) -> Iterator[Fault]:
    """Keys without an effect that do no harm; see HARMLESS."""
    yield from _idle(facts, HARMLESS)


def _idle(facts: Facts, table: tuple[Idle, ...]) -> Iterator[Fault]:
    for row in table:
        if facts.matrix in row.matrices and row.idle(facts):
            yield Fault(row.key, f"{row.key}: no effect: {row.why}; found {facts.shown(row.key)}", row.remedy)


def replaced(facts: Facts) -> Iterator[Fault]:
    """A mapping in a place that inherits one by interpolation: what it inherited is gone, all of it.

    OmegaConf merges mappings, but not into an interpolation. The reference model's override has a rule of its own.
    """
    for key, default in facts.inherited.items():
        own = facts.written.get(key)
        if key.startswith(REF) or not (isinstance(default, str) and "${" in default and isinstance(own, dict)):
            continue
        yield Fault(
            key,
            f"{key}: expected {default}, found a mapping of {', '.join(map(str, own)) or 'nothing'}, which replaces it",
            "write all of its keys, or change what it inherits from",
        )


def _chunks(facts: Facts) -> bool:
    return facts.below(f"{ENGINE}.additional_config.ascend_scheduler_config").get("enable_chunked_prefill") is True
