"""What a rollout engine starts with: a recipe's settings once verl, vLLM and vllm-ascend have had their say.

For synchronous rollouts with verl 21271aa (0.6.0 is the same), vLLM 0.11.0, and vllm-ascend 15b2e5c or 0.11.0rc1; for
the commercial matrix only the streams. tests/recipes/lint/test_real_rollout.py compares it with their own code.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor

from recipes.lint.facts import ENGINE, ROLLOUT, Facts
from recipes.lint.lengths import model_length
from recipes.lint.models import PATH, Model
from recipes.lint.models import find as find_model
from recipes.lint.rule import COMMERCIAL, CPU, PERFORMANCE

COMPILATION = f"{ENGINE}.compilation_config"
ADDITIONAL = f"{ENGINE}.additional_config"
SCHEDULER = f"{ADDITIONAL}.ascend_scheduler_config"
TORCHAIR = f"{ADDITIONAL}.torchair_graph_config"
SPECULATION = f"{ENGINE}.speculative_config"
SEQUENCE_PARALLEL = f"{COMPILATION}.pass_config.enable_sequence_parallelism"

STREAMS = 1800  # for graphs, of 2048 (utils.py:310; 0.11.0rc1: 330)
STREAMS_OLDER = 1920  # at 1de16ea (utils.py:47)
PLUGIN_SIZES = [8, 16, 32, 64, 128, 192, 256, 384]  # MindSpeed-RL v2.2.0, vllm_rollout_spmd.py:170
BLOCK = 128  # tokens
EAGER, PIECES = 0, 3  # vLLM's levels of compilation
ASCEND = "AscendScheduler"


@dataclass(frozen=True)
class Commit:
    """In what the two vllm-ascend differ that the same vLLM takes; each with its place in both."""

    forces_scheduler: bool  # 15b2e5c, platform.py:136-161; c5fe179, platform.py:288: where it is switched on only
    blocks_without_scheduler: bool  # of 128: c5fe179, platform.py:267-269; 15b2e5c, 267: with prefix caching only
    filters_sizes: bool  # multiples of tp: c5fe179, platform.py:187-199; 15b2e5c, 209-210: vLLM's default list only
    grows_sizes: bool  # for speculation: c5fe179, utils.py:431-450; 15b2e5c, 403-409: leaves them
    recomputes: bool  # a scheduler more: c5fe179, platform.py:294-299; 15b2e5c, 279-284: none
    super_kernel: bool  # of torchair: c5fe179, ascend_config.py:157, 194-206; 15b2e5c, 136-153: not read


COMMITS = {
    PERFORMANCE: Commit(True, False, False, False, False, False),
    CPU: Commit(False, True, True, True, True, True),
}


@dataclass(frozen=True)
class Engine:
    """The engine's configuration after NPUPlatform.check_and_update_config."""

    mode: str  # of graphs: NONE, PIECEWISE or FULL_DECODE_ONLY
    level: int  # of compilation
    sizes: list[int]  # batch sizes that are captured, largest first
    scheduler: str
    chunked: bool  # whether prefills are cut
    tokens: int  # max_num_batched_tokens
    block: int  # tokens of a block of the KV cache
    worker: str


def resolved(facts: Facts) -> Engine | None:
    """The engine that a recipe starts, if nothing refuses it; None where a size of it is missing."""
    sizes, tokens = captured(facts), batched_tokens(facts)
    if facts.matrix not in COMMITS or sizes is None or tokens is None:
        return None
    mode, level = graph(facts)
    return Engine(mode, level, sizes, scheduler(facts), chunked(facts), tokens, block(facts), worker(facts))


def parallel(facts: Facts) -> tuple[int, int] | None:
    """The engine's tp and dp. verl starts synchronous engines with tp alone (vllm_rollout_spmd.py:192-214)."""
    tp = facts.size("rollout_tp")
    own = facts.size(f"{ENGINE}.data_parallel_size") or 1
    return tp and (tp, own if facts.mode == "sync" and facts.matrix != COMMERCIAL else facts.engine_dp)


def stream_budget(facts: Facts) -> int | None:
    """How many sizes can be captured (R1, R2, R5: utils.py:302-381; 0.11.0rc1: 322-401; 1de16ea: 313-340)."""
    model, sizes = facts.model, parallel(facts)
    if model is None or sizes is None:
        return None
    tp, dp = (size > 1 for size in sizes)
    per_graph = model.layers + 1 + _drafted(facts, model)
    if facts.matrix == COMMERCIAL:  # counts the data parallelism of this process, which the plugin leaves at 1
        return STREAMS_OLDER // (model.layers + 1) // (1 + tp)
    groups = dp + tp
    if facts.env.get("HCCL_OP_EXPANSION_MODE") != "AIV":
        return floor((STREAMS - 40 * groups) / per_graph / (1 + 2 * groups))
    shared = bool(facts.get(f"{ADDITIONAL}.multistream_overlap_shared_expert"))
    factor = 1 + groups + facts.spreads_experts + shared + (dp if model.experts else 0)
    streams = STREAMS if model.experts else STREAMS - factor * per_graph
    return floor(streams / per_graph / factor)


def _drafted(facts: Facts, model: Model) -> int:
    """Streams a graph of speculation takes: of the draft model, with ngram of the model itself; 0 if not known."""
    given = facts.below(SPECULATION)
    draft = model if "ngram" in (given.get("method"), given.get("model")) else find_model({PATH: given.get("model")})
    return draft.layers + 1 if given and draft else 0


def graph(facts: Facts) -> tuple[str, int]:
    """Mode of graphs and level of compilation.

    vLLM 0.11.0, config/__init__.py:325-379; platform.py:174-253 (0.11.0rc1: 148-243).
    """
    level = facts.get(f"{COMPILATION}.level")
    if level is None:
        level = PIECES if facts.graphs else EAGER
    mode = asked_mode(facts) or ("PIECEWISE" if level == PIECES else "NONE")
    if mode == "FULL_AND_PIECEWISE":
        mode = "PIECEWISE"
    graphs = facts.graphs and level in (EAGER, PIECES) and not facts.below(TORCHAIR).get("enabled")
    return (mode, level) if graphs and mode in ("PIECEWISE", "FULL_DECODE_ONLY") else ("NONE", EAGER)


def asked_mode(facts: Facts) -> str | None:
    """The mode of graphs that a recipe names, also by older switches (vLLM 0.11.0, config/compilation.py:462-478)."""
    given = facts.get(f"{COMPILATION}.cudagraph_mode")
    if isinstance(given, str):
        return given.upper()
    if facts.get(f"{COMPILATION}.use_cudagraph") is False:
        return "NONE"
    return "FULL" if facts.is_on(f"{COMPILATION}.full_cuda_graph") else None


def asked_sizes(facts: Facts) -> list[int] | None:
    """The sizes that a recipe lists, else vLLM's own, largest first; None where they are no sizes.

    vLLM 0.11.0, config/__init__.py:533-595; the plugin's for the commercial matrix.
    """
    if facts.matrix == COMMERCIAL:
        return PLUGIN_SIZES[::-1]
    given = facts.get(f"{COMPILATION}.cudagraph_capture_sizes")
    if given is not None:
        return sorted(set(given), reverse=True) if _whole(given) else None
    sequences, tokens = facts.size(f"{ROLLOUT}.max_num_seqs"), facts.size(f"{ROLLOUT}.max_num_batched_tokens")
    limits = facts.get(f"{ENGINE}.cuda_graph_sizes") or [min(2 * (sequences or 1), 512)]
    if not _whole(limits) or not sequences or not tokens:
        return None
    sizes = limits if len(limits) > 1 else [1, 2, 4, *range(8, min(limits[0], tokens) + 1, 8)]
    if facts.is_on(SEQUENCE_PARALLEL):
        sizes = _multiples(sizes, facts)
    return sorted((size for size in sizes if size <= tokens), reverse=True)


def captured(facts: Facts) -> list[int] | None:
    """The sizes that are captured, largest first: filtered, thinned out, grown; with less than 2 streams all."""
    sizes, (mode, _), commit = asked_sizes(facts), graph(facts), COMMITS.get(facts.matrix)
    if sizes is None or mode == "NONE":
        return sizes and []
    if commit and commit.filters_sizes and sequence_parallel(facts):
        sizes = _multiples(sizes, facts)
    budget = stream_budget(facts)
    if mode != "PIECEWISE" or budget is None:  # whole graphs are not trimmed (R6)
        return sizes
    if 1 < budget < len(sizes):
        sizes = thinned(sizes, budget)
    extra, most = facts.below(SPECULATION).get("num_speculative_tokens"), facts.size(f"{ROLLOUT}.max_num_seqs") or 0
    if commit and commit.grows_sizes and isinstance(extra, int) and extra > 1:
        sizes = [(extra + 1) * size for size in sizes] if sizes[:1] < [(extra + 1) * most] else sizes
    return sizes


def thinned(sizes: list[int], budget: int) -> list[int]:
    """The sizes that are left of a list that is too long, as utils.py:384-392 picks them; largest first as vLLM's."""
    sizes = sorted(sizes, reverse=True)
    step = (len(sizes) - 1) / (budget - 1)
    places = [round(place * step) for place in range(budget)]
    places[0], places[-1] = 0, len(sizes) - 1
    return [sizes[place] for place in places]


def sequence_parallel(facts: Facts) -> bool:
    """Whether 0.11.0rc1 takes sequences to be split over tp (its utils.py:612-627)."""
    switches = (facts.env.get(f"VLLM_ASCEND_ENABLE_{name}", "0") for name in ("FLASHCOMM1", "FLASHCOMM"))
    return facts.is_on(SEQUENCE_PARALLEL) or any(switch != "0" for switch in switches)


def scheduler(facts: Facts) -> str:
    """The scheduler's class (R12, R13; vLLM 0.11.0, config/scheduler.py:238-240)."""
    commit, asynchronous = COMMITS[facts.matrix], facts.is_on(f"{ENGINE}.async_scheduling")
    if ascends(facts):
        return str(facts.below(SCHEDULER).get("scheduler_cls") or ASCEND).rpartition(".")[2]
    if commit.recomputes and facts.below(ADDITIONAL).get("recompute_scheduler_enable") and not asynchronous:
        return "RecomputeScheduler"
    return "AsyncScheduler" if asynchronous else "Scheduler"


def ascends(facts: Facts) -> bool:
    """Whether the Ascend scheduler is used."""
    return bool(facts.below(SCHEDULER).get("enabled")) or forced(facts)


def forced(facts: Facts) -> bool:
    """Whether 15b2e5c switches it on by itself (platform.py:136-148)."""
    usual = {"async_scheduling": False, "scheduling_policy": "fcfs", "structured_outputs_config.backend": "auto"}
    return COMMITS[facts.matrix].forces_scheduler and all(
        facts.get(f"{ENGINE}.{key}", value) in (None, value) for key, value in usual.items()
    )


def chunked(facts: Facts) -> bool:
    """Whether prefills are cut: vLLM's own schedulers always do (vLLM 0.11.0, engine/arg_utils.py:1547-1548)."""
    return not ascends(facts) or bool(facts.below(SCHEDULER).get("enable_chunked_prefill"))


def batched_tokens(facts: Facts) -> int | None:
    """max_num_batched_tokens, raised to the model length where the scheduler is forced (R12: platform.py:158-161)."""
    tokens, length = facts.size(f"{ROLLOUT}.max_num_batched_tokens"), model_length(facts)
    if tokens is None or length is None:
        return None
    if forced(facts) and not chunked(facts):
        tokens = max(tokens, length)
    return (ascends(facts) and facts.size(f"{SCHEDULER}.max_num_batched_tokens")) or tokens


def block(facts: Facts) -> int:
    """Tokens of a block (R11: platform.py:263-271; 0.11.0rc1: 263-274)."""
    given = facts.size(f"{ENGINE}.block_size")
    fixed = facts.is_on(f"{ROLLOUT}.enable_prefix_caching")
    if COMMITS[facts.matrix].blocks_without_scheduler:
        fixed = fixed or chunked(facts)
    return BLOCK if fixed or given is None else given


def worker(facts: Facts) -> str:
    """The worker's class (R10: platform.py:255-261; ascend_config.py:70-72)."""
    shared = facts.below(ADDITIONAL).get("enable_shared_expert_dp") and facts.spreads_experts
    return "NPUTorchairWorker" if facts.below(TORCHAIR).get("enabled") or shared else "NPUWorker"


def _whole(given: object) -> bool:
    return isinstance(given, list) and all(type(one) is int and one >= 1 for one in given)


def _multiples(sizes: Iterable[int], facts: Facts) -> list[int]:
    """The sizes that sequences split over tp can have (vLLM 0.11.0, config/__init__.py:511-531)."""
    return [size for size in sizes if size % (facts.size("rollout_tp") or 1) == 0]
