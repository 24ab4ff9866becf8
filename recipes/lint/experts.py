"""Expert parallelism of the rollout on Atlas A2: what MC2's operators take."""

from collections.abc import Iterator
from math import ceil

from recipes.lint.facts import ENGINE, ROLLOUT, SIZES, Facts
from recipes.lint.rule import COMMERCIAL, Fault

# ep_world_size that npu_moe_distribute_dispatch takes on A2 (op-plugin 30d42570, its page): v1, and v2's fullmesh.
WORLDS = {"commercial": (16, 32, 64), "performance": (16, 32, 64, 128, 256)}
MC2_FROM = 16  # devices from which A2 uses MC2 (vllm-ascend 15b2e5c, model_runner_v1.py:1836; 1de16ea: ep)
EXPERTS_A_RANK = 24
TOKENS = 256  # of a rank in one call
HIDDEN, ACTIVE = 7168, 16
BUFFER_DEFAULT = 200  # MB
MB = 2**20
SLOW_FROM = 128  # the practice report: too large on A2


def world(facts: Facts) -> Iterator[Fault]:
    """From 16 devices on decoding uses MC2, whose operators take certain sizes of the expert group only."""
    ep, sizes = facts.engine_ep, WORLDS.get(facts.matrix, ())
    if ep >= MC2_FROM and ep not in sizes:
        yield Fault(
            _key(facts),
            f"expert parallelism {ep}: expected one of {', '.join(map(str, sizes))}, which MC2 takes on A2",
            f"change {SIZES['rollout_tp']} or the data parallelism",
        )


def share(facts: Facts) -> Iterator[Fault]:
    """Experts divide over the group, and MC2 takes at most 24 a rank."""
    ep, model = facts.engine_ep, facts.model
    if ep == 1 or model is None or not model.experts:
        return
    if model.experts % ep:
        yield Fault(
            _key(facts),
            f"{model.experts} experts over expert parallelism {ep}: expected a whole number a rank, found a rest of "
            f"{model.experts % ep}",
            "use a divisor of the number of experts",
        )
    elif ep >= MC2_FROM and model.experts // ep > EXPERTS_A_RANK:
        yield Fault(
            _key(facts),
            f"{model.experts} experts / {ep} = {model.experts // ep} a rank: expected at most {EXPERTS_A_RANK} on A2",
            "raise the expert parallelism",
        )


def shape(facts: Facts) -> Iterator[Fault]:
    """Hidden size and active experts that MC2 takes on A2: up to 7168 and 16."""
    model = facts.model
    if facts.engine_ep >= MC2_FROM and model and (model.hidden > HIDDEN or model.active > ACTIVE):
        yield Fault(
            _key(facts),
            f"hidden {model.hidden}, {model.active} active experts: expected at most {HIDDEN} and {ACTIVE} on A2",
            "keep the expert parallelism below 16, where all-gather is used",
        )


def buffer(facts: Facts) -> Iterator[Fault]:
    """HCCL_BUFFSIZE >= 2 (BS ep min(local experts, K) H 2 B + 2 MB), BS tokens of a rank (op-plugin 30d42570).

    BS is the decoding batch over tp: the largest capture size, else max_num_seqs (model_runner_v1.py:462-472).
    """
    model, ep, tp = facts.model, facts.engine_ep, facts.size("rollout_tp")
    tokens = _tokens(facts)
    if model is None or not model.experts or ep < MC2_FROM or not tp or not tokens:
        return
    each, local = ceil(tokens / tp), ceil(model.experts / ep)
    needed = ceil(2 * (each * ep * min(local, model.active) * model.hidden * 2 + 2 * MB) / MB)
    given = facts.env.get("HCCL_BUFFSIZE", str(BUFFER_DEFAULT))
    if each > TOKENS:
        yield Fault(
            f"{ROLLOUT}.max_num_seqs",
            f"{tokens} tokens / tp {tp} = {each} a rank: expected at most {TOKENS} for MC2 on A2",
            "lower max_num_seqs or the largest capture size",
        )
    elif given.isdigit() and int(given[:9]) < needed:
        yield Fault(
            "launch.env.HCCL_BUFFSIZE",
            f"HCCL_BUFFSIZE: expected at least {needed} MB (2 × ({each} tokens × ep {ep} × "
            f"{min(local, model.active)} × {model.hidden} × 2 B + 2 MB)), found {given}",
            f"set it to {needed} or more; every communicator takes two of them",
        )


def large(facts: Facts) -> Iterator[Fault]:
    """On A2 the links are slow: 128 and more made it slower, the practice report says."""
    if facts.engine_ep >= SLOW_FROM:
        yield Fault(_key(facts), f"expert parallelism {facts.engine_ep}: expected below {SLOW_FROM} on A2", "lower it")


def _key(facts: Facts) -> str:
    return f"{ROLLOUT if facts.matrix == COMMERCIAL else ENGINE}.enable_expert_parallel"


def _tokens(facts: Facts) -> int | None:
    sizes = facts.get(f"{ENGINE}.compilation_config.cudagraph_capture_sizes")
    if facts.graphs and isinstance(sizes, list) and sizes and all(type(one) is int and one > 0 for one in sizes):
        return max(sizes)
    return facts.size(f"{ROLLOUT}.max_num_seqs")
