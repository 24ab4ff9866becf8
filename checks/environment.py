"""Rules on environment variables, against each other and against a recipe. One implementation: the linter asks it about
a recipe's variables, the doctor about those of a shell and the recipe together.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from checks.findings import Level
from checks.words import Text, Words

EXEC_DEFAULT = 1836  # seconds, torch_npu 2.7.1, torch_npu/csrc/distributed/ProcessGroupHCCL.cpp defaultExecTimeout
STEP_SECONDS = 0.1  # of a decoding step in eager mode, an assumption for long answers and no measurement
LONG_ANSWER = 8192  # tokens from which the waiting times above are looked at

ROLLOUT = "actor_rollout_ref.rollout"
MEGATRON = "actor_rollout_ref.actor.megatron"
GROUP_TIMEOUT = "actor_rollout_ref.nccl_timeout"
UNSET = Text("none", "未设置")


@dataclass(frozen=True)
class Fault:
    """A variable, or a key of the recipe, that must be another."""

    name: str
    expected: Words
    found: Words
    remedy: Words

    @property
    def subject(self) -> str:
        """As a recipe has it."""
        return self.name if "." in self.name else f"launch.env.{self.name}"


@dataclass(frozen=True)
class Setting:
    """The variables of a run, and the recipe's values by dotted key (none without a recipe)."""

    env: Mapping[str, str]
    values: Mapping[str, object]

    @property
    def graphs(self) -> bool:
        """Whether rollouts are to be captured."""
        return self.values.get(f"{ROLLOUT}.enforce_eager") is False

    def size(self, key: str) -> int | None:
        """A whole number of at least 1, or None."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None

    def seconds(self, name: str, default: int | None = None) -> int | None:
        """A time-out: `default` where it is not set, None where it is no number."""
        value = self.env.get(name)
        if value is None:
            return default
        return int(value) if re.fullmatch(r"\d{1,9}", value) else None


Rule = Callable[[Setting], Iterator[Fault]]


def task_queue(setting: Setting) -> Iterator[Fault]:
    """TASK_QUEUE_ENABLE is 0 or 1 with graph mode: NPUGraph::capture_begin refuses 2.

    torch_npu v7.2.0-pytorch2.7.1, csrc/core/npu/NPUGraph.cpp:127-133; other values: OptionsManager.cpp:547. One value
    for the process, which trains and generates. With MindSpeed's dummy torch.compile nothing is captured and 2 passes.
    """
    name = "TASK_QUEUE_ENABLE"
    value = setting.env.get(name)
    if value is None:
        return
    if value not in ("0", "1", "2"):
        yield Fault(name, Text("0, 1 or 2", "0、1 或 2"), repr(value), Text("set it to 1", "设为 1"))
    elif value == "2" and setting.graphs:
        yield Fault(
            name,
            Text("0 or 1 with graph mode, whose capture refuses 2", "图模式下为 0 或 1（捕获时不接受 2）"),
            "2",
            Text(f"set it to 1, or {ROLLOUT}.enforce_eager to true", f"设为 1，或令 {ROLLOUT}.enforce_eager 为 true"),
        )


def task_queue_eager(setting: Setting) -> Iterator[Fault]:
    """In eager mode 2 hides more of the host's work (torch_npu's documentation); it may take more memory."""
    name = "TASK_QUEUE_ENABLE"
    if setting.values.get(f"{ROLLOUT}.enforce_eager") is True and setting.env.get(name, "1") != "2":
        found = setting.env.get(name) or Text("none, which is 1", "未设置，即 1")
        yield Fault(
            name, Text("2, which eager mode allows", "2（eager 模式允许）"), found, Text("set it to 2", "设为 2")
        )


def fractal_nz(setting: Setting) -> Iterator[Fault]:
    """VLLM_ASCEND_ENABLE_NZ=0: its default 1 lays weights out as FRACTAL_NZ, into parts of which the trainer's go.

    vllm-ascend 15b2e5c, envs.py:173, ops/common_fused_moe.py:87-91. 1de16ea has no such variable.
    """
    name = "VLLM_ASCEND_ENABLE_NZ"
    if setting.env.get(name) != "0":
        found = setting.env.get(name) or Text("none, which is 1", "未设置，即 1")
        yield Fault(name, "0", found, Text("set it to 0", "设为 0"))


def allocator(setting: Setting) -> Iterator[Fault]:
    """No expandable segments with sleep mode: CaMemAllocator refuses them.

    vllm-ascend 15b2e5c and 1de16ea, device_allocator/camem.py:148.
    """
    name = "PYTORCH_NPU_ALLOC_CONF"
    value = setting.env.get(name, "")
    if "expandable_segments:True" in value and setting.values.get(f"{ROLLOUT}.free_cache_engine") is True:
        yield Fault(
            name,
            Text(
                f"no expandable_segments:True with {ROLLOUT}.free_cache_engine",
                f"{ROLLOUT}.free_cache_engine 开启时不含 expandable_segments:True",
            ),
            repr(value),
            Text("remove it: sleep mode brings its own memory pool", "删除：sleep 模式自带内存池"),
        )


def connections(setting: Setting) -> Iterator[Fault]:
    """CUDA_DEVICE_MAX_CONNECTIONS is 1 with tp or cp: verl sets it unless the recipe says otherwise.

    verl 21271aa, trainer/constants_ppo.py (796871d the same). Later verl refuses other values.
    """
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    value = setting.env.get(name, "1")
    parallel = [setting.size(f"{MEGATRON}.{one}_parallel_size") or 1 for one in ("tensor_model", "context")]
    if value != "1" and max(parallel) > 1:
        yield Fault(
            name,
            Text("1 with tp or cp above 1", "tp 或 cp 大于 1 时为 1"),
            value,
            Text("remove it: verl sets 1", "删除：verl 会设为 1"),
        )


def launch_blocking(setting: Setting) -> Iterator[Fault]:
    """ASCEND_LAUNCH_BLOCKING=1 synchronises after each operator, which is not allowed while a graph is captured.

    torch_npu v7.2.0-pytorch2.7.1, csrc/core/npu/register/OptionsManager.cpp:537. vllm-ascend refuses it from ef3fabf399
    on, six days after 15b2e5c.
    """
    name = "ASCEND_LAUNCH_BLOCKING"
    if setting.env.get(name) == "1" and setting.graphs:
        remedy = Text(
            f"remove it, or set {ROLLOUT}.enforce_eager to true", f"删除，或令 {ROLLOUT}.enforce_eager 为 true"
        )
        yield Fault(name, Text("0 with graph mode", "图模式下为 0"), "1", remedy)


def launch_blocking_slow(setting: Setting) -> Iterator[Fault]:
    """The same in eager mode: a debugging aid, which also sets the task queue to 0 (OptionsManager.cpp:538)."""
    name = "ASCEND_LAUNCH_BLOCKING"
    if setting.env.get(name) == "1" and not setting.graphs:
        found = Text(
            "1: every operator waits for the device, and TASK_QUEUE_ENABLE counts as 0",
            "1：每个算子都等待设备，且 TASK_QUEUE_ENABLE 视为 0",
        )
        yield Fault(name, "0", found, Text("remove it", "删除"))


def event_timeout(setting: Setting) -> Iterator[Fault]:
    """HCCL_EVENT_TIMEOUT > HCCL_EXEC_TIMEOUT, 0 being never.

    torch_npu v7.2.0-pytorch2.7.1, csrc/distributed/ProcessGroupHCCL.cpp:958-975, which warns; unset, it is derived.
    """
    event, limit = setting.seconds("HCCL_EVENT_TIMEOUT"), setting.seconds("HCCL_EXEC_TIMEOUT", EXEC_DEFAULT)
    if event is not None and event > 0 and (limit == 0 or event <= limit):
        shown = Text("never (0)", "永不超时（0）") if limit == 0 else Text(str(limit), str(limit))
        yield Fault(
            "HCCL_EVENT_TIMEOUT",
            Text(f"more than HCCL_EXEC_TIMEOUT, {shown.en}", f"大于 HCCL_EXEC_TIMEOUT，即 {shown.zh}"),
            str(event),
            Text("remove it: torch_npu derives it", "删除：torch_npu 会推导"),
        )


def group_timeout(setting: Setting) -> Iterator[Fault]:
    """The process groups' timeout is above HCCL_EXEC_TIMEOUT, or groups end before HCCL says why (torch_npu's docs)."""
    group, limit = setting.size(GROUP_TIMEOUT), setting.seconds("HCCL_EXEC_TIMEOUT")
    if group and limit and group <= limit:
        expected = Text(f"more than HCCL_EXEC_TIMEOUT, {limit}", f"大于 HCCL_EXEC_TIMEOUT，即 {limit}")
        yield Fault(GROUP_TIMEOUT, expected, str(group), Text("raise it", "增大"))


def patience(setting: Setting) -> Iterator[Fault]:
    """Ranks that are done early wait for the longest answer: both time-outs outlast it.

    Assumes 0.1 s a token, no measurement. Defaults: 600 s for groups (verl 21271aa, workers/megatron_workers.py:198),
    1836 s for HCCL.
    """
    response = setting.size("data.max_response_length")
    if response is None or response < LONG_ANSWER:
        return
    needed = round(response * STEP_SECONDS)
    limits = {
        GROUP_TIMEOUT: setting.size(GROUP_TIMEOUT),
        "launch.env.HCCL_EXEC_TIMEOUT": setting.seconds("HCCL_EXEC_TIMEOUT", EXEC_DEFAULT) or None,
    }
    for key, limit in limits.items():
        if limit is not None and limit < needed:
            expected = Text(
                f"at least {needed} s for answers of {response} tokens at {STEP_SECONDS} s each (an assumption)",
                f"至少 {needed} 秒（{response} token 的回答，假设每 token {STEP_SECONDS} 秒）",
            )
            yield Fault(key, expected, str(limit), Text(f"raise it to {needed} or more", f"增大到 {needed} 以上"))


def connect_timeout(setting: Setting) -> Iterator[Fault]:
    """HCCL_CONNECT_TIMEOUT of at least 1800 s on several nodes, as MindSpeed-RL 2.2.0's scripts have 3600."""
    nodes, limit = setting.size("trainer.nnodes"), setting.seconds("HCCL_CONNECT_TIMEOUT", 120)
    if nodes and nodes > 1 and limit is not None and limit < 1800:
        expected = Text(
            f"at least 1800 s on {nodes} nodes, whose ranks load checkpoints before they meet",
            f"{nodes} 个节点时至少 1800 秒（各 rank 先加载检查点再建链）",
        )
        yield Fault("HCCL_CONNECT_TIMEOUT", expected, str(limit), Text("set it to 3600", "设为 3600"))


def jemalloc(setting: Setting) -> Iterator[Fault]:
    """jemalloc is preloaded from aarch64's folder: Atlas hosts are aarch64, and on x86 it brings nothing."""
    value = setting.env.get("LD_PRELOAD", "")
    if "jemalloc" in value and "aarch64" not in value:
        remedy = Text(
            "write /usr/lib/aarch64-linux-gnu/libjemalloc.so.2, or remove it on x86",
            "写 /usr/lib/aarch64-linux-gnu/libjemalloc.so.2，x86 上删除",
        )
        yield Fault("LD_PRELOAD", Text("aarch64's jemalloc", "aarch64 的 jemalloc"), repr(value), remedy)


def preload(setting: Setting) -> Iterator[Fault]:
    """LD_PRELOAD is separated by colons or single spaces and has no quotes or variables: nothing expands them."""
    value = setting.env.get("LD_PRELOAD", "")
    if re.search(r"[$'\"`]", value):
        yield Fault(
            "LD_PRELOAD", Text("plain paths", "普通路径"), repr(value), Text("write the path itself", "直接写路径")
        )


def visible(setting: Setting) -> Iterator[Fault]:
    """As many visible devices as the recipe uses on a node."""
    name, key = "ASCEND_RT_VISIBLE_DEVICES", "trainer.n_gpus_per_node"
    value, wanted = setting.env.get(name), setting.size(key)
    if value is None or wanted is None:
        return
    listed = [part.strip() for part in value.split(",") if part.strip()]
    if not all(part.isdigit() for part in listed) or len(set(listed)) != len(listed) or len(listed) < wanted:
        expected = Text(f"at least {wanted} different device numbers ({key})", f"至少 {wanted} 个不同的设备号（{key}）")
        yield Fault(name, expected, repr(value), Text("list them, or remove the variable", "列全，或删除该变量"))


def v1_engine(setting: Setting) -> Iterator[Fault]:
    """VLLM_USE_V1 is not 0 (vllm-ascend 15b2e5c, platform.py:122-123; R17)."""
    if setting.env.get("VLLM_USE_V1", "1") == "0":
        found = Text("0: vllm-ascend does not support the V0 engine", "0：vllm-ascend 不支持 V0 引擎")
        yield Fault("VLLM_USE_V1", "1", found, Text("remove it", "删除"))


def blocking_wait(setting: Setting) -> Iterator[Fault]:
    """HCCL_ASYNC_ERROR_HANDLING is 0 with long answers, as in MindSpeed-RL 2.2.0's script for 235B."""
    name = "HCCL_ASYNC_ERROR_HANDLING"
    response = setting.size("data.max_response_length") or 0
    if response >= LONG_ANSWER and setting.env.get(name) not in (None, "0"):
        expected = Text(f"0 with answers of {response} tokens", f"回答长达 {response} token 时为 0")
        yield Fault(name, expected, setting.env[name], Text("set it to 0", "设为 0"))


def numbers(setting: Setting) -> Iterator[Fault]:
    """Time-outs and buffer sizes are whole numbers: the C side reads them with strtol and takes text for 0."""
    for name in (
        "HCCL_EXEC_TIMEOUT",
        "HCCL_CONNECT_TIMEOUT",
        "HCCL_EVENT_TIMEOUT",
        "HCCL_BUFFSIZE",
        "P2P_HCCL_BUFFSIZE",
    ):
        value = setting.env.get(name)
        if value is not None and not re.fullmatch(r"\d+", value):
            yield Fault(name, Text("a whole number", "整数"), repr(value), Text("write the number", "写数字"))


def shared_affinity(setting: Setting) -> Iterator[Fault]:
    """CPU_AFFINITY_CONF without ranges: each worker sees one device, so mode 2 pins all of them to the same cores.

    torch_npu v7.2.0-pytorch2.7.1, csrc/core/npu/NPUAffinityController.cpp; derived, not seen on a device.
    """
    value = setting.env.get("CPU_AFFINITY_CONF", "")
    if re.fullmatch(r"\s*2\s*", value):
        yield Fault(
            "CPU_AFFINITY_CONF",
            Text("a range for each device", "各设备的核范围"),
            Text(
                "2 without ranges: every worker sees one device, so all take the same cores",
                "2 且无范围：每个 worker 只见一个设备，会占用相同的核",
            ),
            Text("give ranges (npu0:0-23,npu1:24-47,…), or remove it", "写明范围（npu0:0-23,npu1:24-47,…），或删除"),
        )


PERFORMANCE, COMMERCIAL, CPU = "performance", "commercial", "cpu"
NPU, NEWER, ALL = (PERFORMANCE, COMMERCIAL), (PERFORMANCE, CPU), (PERFORMANCE, COMMERCIAL, CPU)


@dataclass(frozen=True)
class Row:
    """A rule and how it is reported. `title` says what is true where it finds nothing."""

    id: str
    rule: Rule
    problem: str  # row of the table of known problems
    title: Text
    level: Level = "fail"
    matrices: tuple[str, ...] = ALL


ROWS = (
    Row("task-queue", task_queue, "F12", Text("the task queue goes with graph mode", "任务队列与图模式相容")),
    Row(
        "task-queue-eager",
        task_queue_eager,
        "F12",
        Text("eager mode uses the task queue", "eager 模式启用二级任务队列"),
        "note",
        NPU,
    ),
    Row("fractal-nz", fractal_nz, "F11", Text("weights stay in the plain layout", "权重保持普通格式"), matrices=NEWER),
    Row(
        "allocator",
        allocator,
        "D5",
        Text("the allocator goes with sleep mode", "分配器与 sleep 模式相容"),
        matrices=NPU,
    ),
    Row(
        "connections",
        connections,
        "E8",
        Text("one connection with tensor or context parallelism", "tp 或 cp 时只用一个连接"),
        "warn",
    ),
    Row("launch-blocking", launch_blocking, "G1", Text("no synchronous launches in graph mode", "图模式下不同步下发")),
    Row(
        "launch-blocking-slow",
        launch_blocking_slow,
        "G1",
        Text("operators are launched without waiting", "算子异步下发"),
        "warn",
    ),
    Row("event-timeout", event_timeout, "S1", Text("HCCL's time-outs are in order", "HCCL 各超时次序正确"), "warn"),
    Row("group-timeout", group_timeout, "S1", Text("process groups outlast HCCL", "进程组超时长于 HCCL"), "warn", NPU),
    Row("patience", patience, "S1", Text("time-outs outlast the longest answer", "超时长于最长回答"), "warn", NPU),
    Row(
        "connect-timeout", connect_timeout, "C3", Text("HCCL waits for slow nodes", "HCCL 建链等待足够久"), "warn", NPU
    ),
    Row(
        "error-handling",
        blocking_wait,
        "S1",
        Text("the watchdog lets ranks wait", "watchdog 不中断等待的 rank"),
        "warn",
        NPU,
    ),
    Row("jemalloc", jemalloc, "I4", Text("jemalloc is this processor's", "jemalloc 与处理器架构一致"), "warn", NPU),
    Row("preload", preload, "I4", Text("LD_PRELOAD has plain paths", "LD_PRELOAD 为普通路径")),
    Row("visible-devices", visible, "C7", Text("as many devices are visible as the recipe uses", "可见设备数满足配方")),
    Row("v1-engine", v1_engine, "E12", Text("vLLM runs its V1 engine", "vLLM 使用 V1 引擎")),
    Row("numbers", numbers, "S1", Text("time-outs and buffer sizes are numbers", "超时与缓冲区大小为数字")),
    Row("affinity", shared_affinity, "I4", Text("processes do not share cores", "进程不争用相同的核"), "warn", NPU),
)
