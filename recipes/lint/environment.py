"""Environment variables of the run against each other and against the recipe."""

import re
from collections.abc import Iterator

from recipes.lint.facts import ROLLOUT, SIZES, Facts
from recipes.lint.rule import Fault

EXEC_DEFAULT = 1836  # seconds, torch_npu 2.7.1, torch_npu/csrc/distributed/ProcessGroupHCCL.cpp defaultExecTimeout
STEP_SECONDS = 0.1  # of a decoding step in eager mode, an assumption for long answers and no measurement
LONG_ANSWER = 8192  # tokens from which the waiting times above are looked at


def task_queue(facts: Facts) -> Iterator[Fault]:
    """TASK_QUEUE_ENABLE is 0 or 1 with graph mode: NPUGraph::capture_begin refuses 2.

    torch_npu v7.2.0-pytorch2.7.1, csrc/core/npu/NPUGraph.cpp:127-133; other values: OptionsManager.cpp:547. One value
    for the process, which trains and generates. With MindSpeed's dummy torch.compile nothing is captured and 2 passes.
    """
    name = "TASK_QUEUE_ENABLE"
    value = facts.env.get(name)
    if value is None:
        return
    if value not in ("0", "1", "2"):
        yield _fault(name, f"expected 0, 1 or 2, found {value!r}", "set it to 1")
    elif value == "2" and facts.graphs:
        yield _fault(
            name,
            "expected 0 or 1 with graph mode, whose capture refuses 2, found 2",
            f"set it to 1, or {ROLLOUT}.enforce_eager to true",
        )


def task_queue_eager(facts: Facts) -> Iterator[Fault]:
    """In eager mode 2 hides more of the host's work (torch_npu's documentation); it may take more memory."""
    name = "TASK_QUEUE_ENABLE"
    if facts.get(f"{ROLLOUT}.enforce_eager") is True and facts.env.get(name, "1") != "2":
        yield _fault(
            name, f"2 is allowed in eager mode, found {facts.env.get(name, 'none, which is 1')}", "set it to 2"
        )


def fractal_nz(facts: Facts) -> Iterator[Fault]:
    """VLLM_ASCEND_ENABLE_NZ=0: its default 1 lays weights out as FRACTAL_NZ, into parts of which the trainer's go.

    vllm-ascend 15b2e5c, envs.py:173, ops/common_fused_moe.py:87-91. 1de16ea has no such variable.
    """
    name = "VLLM_ASCEND_ENABLE_NZ"
    if facts.env.get(name) != "0":
        yield _fault(name, f"expected 0, found {facts.env.get(name, 'none, which is 1')}", "set it to 0")


def allocator(facts: Facts) -> Iterator[Fault]:
    """No expandable segments with sleep mode: CaMemAllocator refuses them.

    vllm-ascend 15b2e5c and 1de16ea, device_allocator/camem.py:148.
    """
    name = "PYTORCH_NPU_ALLOC_CONF"
    value = facts.env.get(name, "")
    if "expandable_segments:True" in value and facts.get(f"{ROLLOUT}.free_cache_engine") is True:
        yield _fault(
            name,
            f"expected no expandable_segments:True with {ROLLOUT}.free_cache_engine, found {value!r}",
            "remove it: sleep mode brings its own memory pool",
        )


def connections(facts: Facts) -> Iterator[Fault]:
    """CUDA_DEVICE_MAX_CONNECTIONS is 1 with tp or cp: verl sets it unless the recipe says otherwise.

    verl 21271aa, trainer/constants_ppo.py (796871d the same). Later verl refuses other values.
    """
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = facts.env.get(name, "1")
    if value != "1" and ((facts.size("tp") or 1) > 1 or (facts.size("cp") or 1) > 1):
        yield _fault(name, f"expected 1 with tp or cp above 1, found {value}", "remove it: verl sets 1")


def launch_blocking(facts: Facts) -> Iterator[Fault]:
    """ASCEND_LAUNCH_BLOCKING=1 synchronises after each operator, which is not allowed while a graph is captured.

    torch_npu v7.2.0-pytorch2.7.1, csrc/core/npu/register/OptionsManager.cpp:537. vllm-ascend refuses it from ef3fabf399
    on, six days after 15b2e5c.
    """
    name = "ASCEND_LAUNCH_BLOCKING"
    if facts.env.get(name) == "1" and facts.graphs:
        yield _fault(name, "expected 0 with graph mode, found 1", f"remove it, or set {ROLLOUT}.enforce_eager to true")


def launch_blocking_slow(facts: Facts) -> Iterator[Fault]:
    """The same in eager mode: a debugging aid, which also sets the task queue to 0 (OptionsManager.cpp:538)."""
    name = "ASCEND_LAUNCH_BLOCKING"
    if facts.env.get(name) == "1" and not facts.graphs:
        yield _fault(
            name, "found 1: every operator waits for the device, and TASK_QUEUE_ENABLE counts as 0", "remove it"
        )


def event_timeout(facts: Facts) -> Iterator[Fault]:
    """HCCL_EVENT_TIMEOUT > HCCL_EXEC_TIMEOUT, 0 being never.

    torch_npu v7.2.0-pytorch2.7.1, csrc/distributed/ProcessGroupHCCL.cpp:958-975, which warns; unset, it is derived.
    """
    event, limit = _seconds(facts, "HCCL_EVENT_TIMEOUT"), _seconds(facts, "HCCL_EXEC_TIMEOUT", EXEC_DEFAULT)
    if event is not None and event > 0 and (limit == 0 or event <= limit):
        shown = "never (0)" if limit == 0 else limit
        yield _fault(
            "HCCL_EVENT_TIMEOUT",
            f"expected more than HCCL_EXEC_TIMEOUT, {shown}, found {event}",
            "remove it: torch_npu derives it",
        )


def group_timeout(facts: Facts) -> Iterator[Fault]:
    """The process groups' timeout is above HCCL_EXEC_TIMEOUT, or groups end before HCCL says why (torch_npu's docs)."""
    key = "actor_rollout_ref.nccl_timeout"
    group, limit = facts.size(key), _seconds(facts, "HCCL_EXEC_TIMEOUT")
    if group and limit and group <= limit:
        yield Fault(key, f"{key}: expected more than HCCL_EXEC_TIMEOUT, {limit}, found {group}", "raise it")


def patience(facts: Facts) -> Iterator[Fault]:
    """Ranks that are done early wait for the longest answer: both time-outs outlast it.

    Assumes 0.1 s a token, no measurement. Defaults: 600 s for groups (verl 21271aa, workers/megatron_workers.py:198),
    1836 s for HCCL.
    """
    response = facts.size("response")
    if response is None or response < LONG_ANSWER:
        return
    needed = round(response * STEP_SECONDS)
    limits = {
        "actor_rollout_ref.nccl_timeout": facts.size("actor_rollout_ref.nccl_timeout"),
        "launch.env.HCCL_EXEC_TIMEOUT": _seconds(facts, "HCCL_EXEC_TIMEOUT", EXEC_DEFAULT) or None,
    }
    for key, limit in limits.items():
        if limit is not None and limit < needed:
            yield Fault(
                key,
                f"{key}: expected at least {needed} s for answers of {response} tokens at {STEP_SECONDS} s each (an "
                f"assumption), found {limit}",
                f"raise it to {needed} or more",
            )


def connect_timeout(facts: Facts) -> Iterator[Fault]:
    """HCCL_CONNECT_TIMEOUT of at least 1800 s on several nodes, as MindSpeed-RL 2.2.0's scripts have 3600."""
    nodes, limit = facts.size("nodes"), _seconds(facts, "HCCL_CONNECT_TIMEOUT", 120)
    if nodes and nodes > 1 and limit is not None and limit < 1800:
        yield _fault(
            "HCCL_CONNECT_TIMEOUT",
            f"expected at least 1800 s on {nodes} nodes, whose ranks load checkpoints before they meet, found {limit}",
            "set it to 3600",
        )


def jemalloc(facts: Facts) -> Iterator[Fault]:
    """jemalloc is preloaded from aarch64's folder: Atlas hosts are aarch64, and on x86 it brings nothing."""
    value = facts.env.get("LD_PRELOAD", "")
    if "jemalloc" in value and "aarch64" not in value:
        yield _fault(
            "LD_PRELOAD",
            f"expected aarch64's jemalloc, found {value!r}",
            "write /usr/lib/aarch64-linux-gnu/libjemalloc.so.2, or remove it on x86",
        )


def preload(facts: Facts) -> Iterator[Fault]:
    """LD_PRELOAD is separated by colons or single spaces and has no quotes or variables: nothing expands them."""
    value = facts.env.get("LD_PRELOAD", "")
    if re.search(r"[$'\"`]", value):
        yield _fault("LD_PRELOAD", f"expected plain paths, found {value!r}", "write the path itself")


def visible(facts: Facts) -> Iterator[Fault]:
    """As many visible devices as the recipe uses on a node."""
    name = "ASCEND_RT_VISIBLE_DEVICES"
    value, wanted = facts.env.get(name), facts.size("per_node")
    if value is None or wanted is None:
        return
    listed = [part.strip() for part in value.split(",") if part.strip()]
    if not all(part.isdigit() for part in listed) or len(set(listed)) != len(listed) or len(listed) < wanted:
        yield _fault(
            name,
            f"expected at least {wanted} different device numbers ({SIZES['per_node']}), found {value!r}",
            "list them, or remove the variable",
        )


def v1_engine(facts: Facts) -> Iterator[Fault]:
    """VLLM_USE_V1 is not 0 (vllm-ascend 15b2e5c, platform.py:122-123; R17)."""
    if facts.env.get("VLLM_USE_V1", "1") == "0":
        yield _fault("VLLM_USE_V1", "expected 1, found 0: vllm-ascend does not support the V0 engine", "remove it")


def blocking_wait(facts: Facts) -> Iterator[Fault]:
    """HCCL_ASYNC_ERROR_HANDLING is 0 with long answers, as in MindSpeed-RL 2.2.0's script for 235B."""
    name = "HCCL_ASYNC_ERROR_HANDLING"
    response = facts.size("response") or 0
    if response >= LONG_ANSWER and facts.env.get(name) not in (None, "0"):
        yield _fault(name, f"expected 0 with answers of {response} tokens, found {facts.env[name]}", "set it to 0")


def numbers(facts: Facts) -> Iterator[Fault]:
    """Time-outs and buffer sizes are whole numbers: the C side reads them with strtol and takes text for 0."""
    for name in (
        "HCCL_EXEC_TIMEOUT",
        "HCCL_CONNECT_TIMEOUT",
        "HCCL_EVENT_TIMEOUT",
        "HCCL_BUFFSIZE",
        "P2P_HCCL_BUFFSIZE",
    ):
        value = facts.env.get(name)
        if value is not None and not re.fullmatch(r"\d+", value):
            yield _fault(name, f"expected a whole number, found {value!r}", "write the number")


def shared_affinity(facts: Facts) -> Iterator[Fault]:
    """CPU_AFFINITY_CONF without ranges: each worker sees one device, so mode 2 pins all of them to the same cores.

    torch_npu v7.2.0-pytorch2.7.1, csrc/core/npu/NPUAffinityController.cpp; derived, not seen on a device.
    """
    value = facts.env.get("CPU_AFFINITY_CONF", "")
    if re.fullmatch(r"\s*2\s*", value):
        yield _fault(
            "CPU_AFFINITY_CONF",
            "found 2 without ranges: every worker sees one device, so all take the same cores",
            "give a range for each device (npu0:0-23,npu1:24-47,…), or remove it",
        )


def _seconds(facts: Facts, name: str, default: int | None = None) -> int | None:
    value = facts.env.get(name)
    if value is None:
        return default
    return int(value) if re.fullmatch(r"\d{1,9}", value) else None


def _fault(name: str, message: str, remedy: str) -> Fault:
    return Fault(f"launch.env.{name}", f"{name}: {message}", remedy)
