"""Device and host memory by phase: exact terms only, so what is refused here cannot fit.

Not counted: attention's and the experts' intermediate results, HCCL's buffers, workspaces, graphs, fragmentation. What
fits only without a reserve for them is a warning.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from recipes.lint import parameters
from recipes.lint.facts import ACTOR, REF, ROLLOUT, SIZES, Facts
from recipes.lint.lengths import model_length
from recipes.lint.models import Model
from recipes.lint.rule import Fault

GIB = 2**30
DEVICE = 64.0  # GiB of an Atlas 800T A2's NPU
RESERVE = 8.0  # GiB for all that is not counted: 3 of the card itself, 5 of HCCL, context and workspaces; an estimate
OVERSHOOT = 1.07  # verl's packing goes over a token budget by up to 6 % at 32k (F27)
BLOCK = 128  # tokens

# What a phase's tokens depend on: the switch of dynamic batch sizes, the token budget, the micro-batch without it.
PHASES = {
    "update": (f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu", SIZES["micro"]),
    "old": (
        f"{ROLLOUT}.log_prob_use_dynamic_bsz",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    ),
    "reference": (
        f"{REF}.log_prob_use_dynamic_bsz",
        f"{REF}.log_prob_max_token_len_per_gpu",
        f"{REF}.log_prob_micro_batch_size_per_gpu",
    ),
}


@dataclass(frozen=True)
class Stage:
    """Memory of a rank of one pipeline stage, in GiB."""

    index: int
    weights: float
    gradients: float
    optimizer: float
    inputs: float  # layer inputs that are kept for backward, all micro-batches in flight
    logits: dict[str, float]  # by phase; the last stage only

    def update(self) -> dict[str, float]:
        """Terms of the update."""
        terms = {"weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer}
        return terms | {"layer inputs": self.inputs, "logits": self.logits["update"]}


def stages(facts: Facts) -> list[Stage]:
    """Every pipeline stage of the trainer; empty where sizes do not fit together, which other rules report.

    Weights 2 B, gradients 4 B (grad_reduce_in_fp32, verl 21271aa, utils/megatron_utils.py:139), optimizer 12 B over the
    copies (distributed optimizer, hard-coded at both commits). Experts with ep 1 are cut like dense parameters
    (core_v0.12.1, core/transformer/moe/experts.py:210).
    """
    layout, model = facts.layout, facts.model
    if layout is None or model is None or not layout.dp or not layout.edp:
        return []
    counts = parameters.stages(model.layers, layout.pp, facts.size("first"), facts.size("last"))
    if len(counts) != layout.pp or min(counts) < 0 or sum(counts) != model.layers:
        return []
    tokens = _tokens(facts)
    found = []
    for index, layers in enumerate(counts):
        last = index == layout.pp - 1
        share = parameters.of_rank(model, layout.tp, layout.ep, layout.etp, layers, index == 0, last)
        cut = layout.dp * layout.cp
        optimizer = share.dense / cut + share.experts / (layout.edp if layout.ep > 1 else cut)
        kept = layers * 2 * model.hidden * tokens["update"] / layout.tp if _recomputes(facts) else 0
        inputs = kept * _in_flight(facts, layout.pp - index)
        found.append(
            Stage(
                index,
                2 * share.total / GIB,
                4 * share.total / GIB,
                12 * optimizer / GIB,
                inputs / GIB,
                _logits(facts, model, layout.tp, tokens) if last else dict.fromkeys(tokens, 0.0),
            )
        )
    return found


def update(facts: Facts) -> Iterator[Fault]:
    """States, layer inputs and logits of the update fit the device."""
    yield from _too_much(facts, DEVICE, 0.0, "does not fit")


def update_near(facts: Facts) -> Iterator[Fault]:
    """The same with a reserve for what is not counted."""
    if not list(update(facts)):
        yield from _too_much(facts, DEVICE - RESERVE, RESERVE, "leaves too little")


def log_prob(facts: Facts) -> Iterator[Fault]:
    """Weights and logits of old and reference log-probs fit: 16 and 6 bytes a token × vocabulary / tp (F22).

    Counted on verl's own functions. What is not offloaded stays: gradients with the weights (verl 21271aa,
    utils/megatron_utils.py, offload_megatron_model_to_cpu).
    """
    for stage in stages(facts)[-1:]:
        stays = _resident(facts, stage)
        phases = {"old": {"weights": stage.weights, "logits": stage.logits["old"]} | stays}
        if facts.has_reference:
            phases["reference"] = {"weights": stage.weights, "logits": stage.logits["reference"]} | {
                f"actor's {name}": value for name, value in stays.items()
            }
        for phase, terms in phases.items():
            if sum(terms.values()) > DEVICE:
                yield Fault(
                    PHASES[phase][1],
                    f"{phase} log-probs, last stage: {_sum(terms)}{_packed(facts, phase)}: expected at most "
                    f"{DEVICE:g} GiB",
                    "lower the token budget (S10), raise tp, or switch offloading on",
                )
                break


def rollout(facts: Facts) -> Iterator[Fault]:
    """Weights leave room for the KV cache of one whole sequence: kv = utilization × device − weights (F23).

    vllm-ascend 15b2e5c, worker/worker_v1.py, determine_available_memory, without its profile run's peak.
    """
    found = _engine(facts)
    if not found:
        return
    weights, cache, length, share = found
    room = share * DEVICE - weights
    if room < cache * length:
        yield Fault(
            SIZES["rollout_tp"],
            f"rollout: {share} × {DEVICE:g} GiB − weights {weights:.1f} GiB = {room:.1f} GiB for KV cache: expected at "
            f"least {cache * length:.2f} GiB, one sequence of {length} tokens",
            "raise the expert parallelism (235B needs 16 or more on 64 GB), tp, or gpu_memory_utilization",
        )


def rollout_near(facts: Facts) -> Iterator[Fault]:
    """The same with a reserve; and how many whole sequences fit against max_num_seqs."""
    found, most = _engine(facts), facts.size(f"{ROLLOUT}.max_num_seqs")
    if not found or list(rollout(facts)):
        return
    weights, cache, length, share = found
    room = share * (DEVICE - RESERVE / 2) - weights - RESERVE / 2
    if room < cache * length:
        yield Fault(
            SIZES["rollout_tp"],
            f"rollout: {room:.1f} GiB for KV cache after a reserve of {RESERVE:g} GiB: expected one sequence of "
            f"{length} tokens, {cache * length:.2f} GiB",
            "raise the expert parallelism or tp",
        )
    elif most and room / (cache * length) * 8 < most:
        whole = int(room / (cache * length))
        yield Fault(
            f"{ROLLOUT}.max_num_seqs",
            f"{ROLLOUT}.max_num_seqs {most}: KV cache of {room:.1f} GiB holds {whole} whole sequences of {length} "
            "tokens; vLLM would preempt and compute again",
            "lower it, or raise the expert parallelism or tp",
        )


def utilization(facts: Facts) -> Iterator[Fault]:
    """gpu_memory_utilization is a share of the card, and what is not offloaded from the trainer has to fit beside it.

    It is taken of the whole card and not of what is free; graphs are captured after the cache is sized.
    """
    key = f"{ROLLOUT}.gpu_memory_utilization"
    share = facts.get(key)
    if not isinstance(share, int | float) or isinstance(share, bool):
        return
    if not 0 < share <= 1:
        yield Fault(key, f"{key}: expected above 0 and at most 1, found {share}", "use 0.8")
        return
    resident = max((sum(_resident(facts, stage).values()) for stage in stages(facts)), default=0.0)
    if not facts.is_on(f"{REF}.megatron.param_offload") and facts.has_reference:
        resident += max((stage.weights for stage in stages(facts)), default=0.0)
    if resident and share * DEVICE + resident > DEVICE:
        yield Fault(
            key,
            f"{share} × {DEVICE:g} GiB for the rollout + {resident:.1f} GiB that stay of training: expected at most "
            f"{DEVICE:g} GiB",
            f"switch {ACTOR}.megatron.param_offload and optimizer_offload on, {REF}.megatron.param_offload too",
        )


def sleep(facts: Facts) -> Iterator[Fault]:
    """Without free_cache_engine the rollout keeps its share of the card while training (verl, enable_sleep_mode)."""
    share = facts.get(f"{ROLLOUT}.gpu_memory_utilization")
    if facts.get(f"{ROLLOUT}.free_cache_engine") is not False or not isinstance(share, int | float):
        return
    worst = max((sum(stage.update().values()) for stage in stages(facts)), default=0.0)
    if worst and share * DEVICE + worst > DEVICE:
        yield Fault(
            f"{ROLLOUT}.free_cache_engine",
            f"rollout {share} × {DEVICE:g} GiB + update {worst:.1f} GiB: expected at most {DEVICE:g} GiB awake",
            "set it to true",
        )


def host(facts: Facts) -> Iterator[Fault]:
    """Host memory of a node, for people to compare (F26)."""
    terms = host_terms(facts)
    if sum(terms.values()) >= 1:
        yield Fault(
            SIZES["per_node"],
            f"host memory of a node, {facts.size('per_node')} NPUs: {_sum(terms)}, up to twice that if pinned memory "
            "is rounded up",
            "compare with the machine's; Ray's object store and the processes come on top",
        )


def host_terms(facts: Facts) -> dict[str, float]:
    """GiB of host memory on a node: what is offloaded, and the rollout's weights, which sleep level 1 keeps there.

    verl 21271aa, third_party/vllm/__init__.py:41; 796871d hard-codes level 1. Pinned memory may take up to twice that.
    """
    found, engine, per_node = stages(facts), _engine(facts), facts.size("per_node")
    if not found or not per_node:
        return {}
    offloads = {
        "actor": facts.is_on(f"{ACTOR}.megatron.param_offload") * max(stage.weights for stage in found),
        "reference": (facts.has_reference and facts.is_on(f"{REF}.megatron.param_offload"))
        * max(stage.weights for stage in found),
        "optimizer": facts.is_on(f"{ACTOR}.megatron.optimizer_offload") * max(stage.optimizer for stage in found),
        "rollout": engine[0] if engine and facts.is_on(f"{ROLLOUT}.free_cache_engine") else 0.0,
    }
    return {name: per_node * value for name, value in offloads.items() if value}


def terms_of(facts: Facts) -> Iterator[Fault]:
    """The update's terms at its fullest stage, for people to see."""
    found = stages(facts)
    if found:
        worst = max(found, key=lambda stage: sum(stage.update().values()))
        yield Fault(
            SIZES["nodes"],
            f"update, stage {worst.index} of {len(found)}: {_sum(worst.update())} of {DEVICE:g} GiB"
            + _packed(facts, "update"),
            "what is not counted: activations of one layer, HCCL, workspaces",
        )


def _too_much(facts: Facts, limit: float, reserve: float, verdict: str) -> Iterator[Fault]:
    found = stages(facts)
    if not found or not _is_production(facts):
        return
    worst = max(found, key=lambda stage: sum(stage.update().values()))
    terms = worst.update()
    if sum(terms.values()) > limit:
        kept = f" after a reserve of {reserve:g} GiB" if reserve else ""
        yield Fault(
            SIZES["nodes"],
            f"update {verdict}, stage {worst.index} of {len(found)}: {_sum(terms)}{_packed(facts, 'update')}: expected "
            f"at most {limit:g} GiB{kept}",
            f"add nodes, raise ep, pp or {SIZES['etp']}, or lower {ACTOR}.ppo_max_token_len_per_gpu",
        )


def _is_production(facts: Facts) -> bool:
    """The emulated NPU has as much memory as the host gives it."""
    return facts.get("launch.hardware") != "emulated"


def _resident(facts: Facts, stage: Stage) -> dict[str, float]:
    """What stays on the device outside the update because it is not offloaded."""
    stays = {}
    if not facts.is_on(f"{ACTOR}.megatron.param_offload"):
        stays |= {"weights": stage.weights, "gradients": stage.gradients}
    if not facts.is_on(f"{ACTOR}.megatron.optimizer_offload"):
        stays |= {"optimizer": stage.optimizer}
    return stays


def _tokens(facts: Facts) -> dict[str, float]:
    """Tokens of a micro-batch on an NPU, by phase.

    With dynamic batch sizes the budget and what packing overshoots, else whole sequences / cp.
    """
    cp, width = facts.size("cp") or 1, facts.width or 0
    return {
        phase: OVERSHOOT * (facts.size(budget) or 0) if facts.is_on(switch) else (facts.size(micro) or 0) * width / cp
        for phase, (switch, budget, micro) in PHASES.items()
    }


def _packed(facts: Facts, phase: str) -> str:
    """The tokens that a sum counts, for messages."""
    switch, key, _ = PHASES[phase]
    budget = facts.size(key)
    return (
        f" (tokens of an NPU: {budget} × {OVERSHOOT}, as packing overshoots)" if facts.is_on(switch) and budget else ""
    )


def _logits(facts: Facts, model: Model, tp: int, tokens: dict[str, float]) -> dict[str, float]:
    """Bytes of logits a token × vocabulary / tp: 8 in update (16 with an entropy loss), 16 and 6 in log-probs."""
    coefficient = facts.get(f"{ACTOR}.entropy_coeff")
    each = {"update": 16 if coefficient not in (None, 0, 0.0) else 8, "old": 16, "reference": 6}
    return {phase: tokens[phase] * each[phase] * model.vocabulary / tp / GIB for phase in tokens}


def _recomputes(facts: Facts) -> bool:
    override = f"{ACTOR}.megatron.override_transformer_config"
    return facts.get(f"{override}.recompute_granularity") == "full"


def _in_flight(facts: Facts, most: int) -> int:
    """Micro-batches that a stage holds: as many as stages follow (core_v0.12.1, core/pipeline_parallel/schedules.py).

    Assumes that a mini-batch has enough of them; it has no more than its rows.
    """
    layout, found = facts.layout, facts.sizes("mini", "samples")
    rows = found[0] * found[1] // layout.dp if layout and layout.dp and found else most
    return max(1, min(most, rows))


def _engine(facts: Facts) -> tuple[float, float, int, float] | None:
    """Weights of a rollout rank and cache of a token in GiB, a sequence in whole blocks, share of the card."""
    model, tp, length = facts.model, facts.size("rollout_tp"), model_length(facts)
    share = facts.get(f"{ROLLOUT}.gpu_memory_utilization")
    if not (model and tp and length) or not isinstance(share, int | float) or not _is_production(facts):
        return None
    weights = 2 * parameters.of_engine(model, tp, facts.engine_ep) / GIB
    return weights, parameters.cache_bytes(model, tp) / GIB, -(-length // BLOCK) * BLOCK, share


def _sum(terms: dict[str, float]) -> str:
    parts = " + ".join(f"{name} {value:.1f}" for name, value in terms.items() if value)
    return f"{parts} = {sum(terms.values()):.1f} GiB"
