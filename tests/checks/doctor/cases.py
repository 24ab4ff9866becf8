"""For each check a machine on which it finds something: a recorded one that is fit, changed in one point.

Without the change the check passes, which is its negative case. `found` is a part of what it says it found.
"""

from dataclasses import dataclass, field

from checks.doctor.check import PatchState
from tests.checks.doctor.machines import APPLIED, GONE

HOST, CONTAINER, A3, LAPTOP = "fit-a2-host", "fit-container", "a3", "no-npu"
IMAGE = "image-container"
GIB = 1 << 30
ENV = "launch.env"
EAGER = {"actor_rollout_ref.rollout.enforce_eager": True}
SITE = "/usr/local/lib/python3.11/site-packages"


@dataclass(frozen=True)
class Broken:
    check: str
    change: dict
    found: str
    machine: str = HOST
    matrix: str = "performance"
    values: dict = field(default_factory=dict)  # of the recipe, when broken
    fit: dict = field(default_factory=dict)  # the recipe's, for the negative case too
    patches: tuple = ()


def env(name: str, value: str) -> dict:
    return {f"environment/{name}": value}


def local(key: str, kind: str = "xfs") -> dict:
    return {f"paths/{key}/file_system": kind}


def recipe_env(**variables: object) -> dict:
    """The recipe's variables, other than it has them."""
    base = {
        "TASK_QUEUE_ENABLE": 1,
        "VLLM_ASCEND_ENABLE_NZ": 0,
        "HCCL_CONNECT_TIMEOUT": 7200,
        "HCCL_EXEC_TIMEOUT": 17340,
    }
    return {ENV: {**base, "HCCL_ASYNC_ERROR_HANDLING": 0, **variables}}


INDEX = {"version": "0.6.0", "from": "index"}
PROCESS = {"npu": 0, "chip": 0, "pid": 4711, "name": "python3", "memory_mb": 40000}
RAYLET = {"pid": 99, "name": "raylet", "session": "/tmp/ray/session_a", "sourced": True}
MODEL, DATA, CHECKPOINT = "actor_rollout_ref.model.path", "data.train_files", "trainer.default_local_dir"
WEIGHTS = "actor_rollout_ref.actor.megatron.dist_checkpointing_path"

CASES = (
    # host
    Broken("host.machine", {"system/machine": "loongarch64"}, "loongarch64"),
    Broken("host.libc", {"system/libc": "glibc 2.17"}, "2.17"),
    Broken("host.libc", {"system/libc": "musl 1.2"}, "musl"),
    Broken("host.python", {"python/version": "3.10.12"}, "3.10.12"),
    Broken("host.kernel", {"system/kernel": "4.19.90-2107.6.0"}, "4.19.90"),
    Broken("host.governor", {"cpu/governors": {"performance": 100, "powersave": 92}}, "powersave × 92"),
    Broken("host.huge-pages", {"memory/huge_pages": "never"}, "never"),
    Broken("host.cores", {"cpu/quota": 16.0}, "16"),
    Broken("host.affinity", {"cpu/usable": 24}, "24"),
    Broken("host.memory-limit", {"memory/limit": 64 * GIB}, "64 GiB", CONTAINER),
    Broken("host.memory-free", {"memory/available": 300 * GIB}, "300 GiB"),
    Broken("host.shared-memory", {"memory/shared/total": 64 << 20}, "64 MiB", CONTAINER),
    Broken("host.shared-memory-ray", {"memory/shared/free": 8 * GIB}, "8 GiB", CONTAINER),
    Broken("host.open-files", {"limits/open_files": [1024, 1048576]}, "1024"),
    Broken("host.processes", {"limits/processes": [4096, 4096]}, "4096"),
    Broken("host.temporary-space", {"disk/temporary/free": 3 * GIB}, "3 GiB"),
    Broken("host.home-space", {"disk/home/free": 2 * GIB}, "2 GiB"),
    Broken("host.disk-full", {"disk/temporary/free": 50 * GIB}, "97.2%"),
    Broken("host.writable", {"disk/home/writable": False}, "read-only"),
    Broken("host.compilers", {"tools/ninja": {"unknown": "FileNotFoundError: ninja"}}, "none"),
    Broken("host.stale-locks", {"builds/locks": [{"path": "/root/.cache/x/lock", "age_seconds": 7200}]}, "120 minutes"),
    Broken("host.shared-builds", {"builds/file_system": "nfs4"}, "nfs4"),
    # NPUs and driver
    Broken("npu.present", {"npu/bus": [], "npu/nodes": [], "npu/smi": {"missing": True}}, "none"),
    Broken("npu.driver", {"npu/driver": {"unknown": "FileNotFoundError"}}, "none"),
    Broken("npu.driver-version", {"npu/driver/release": "24.1.rc3"}, "24.1.rc3"),
    Broken("npu.driver-known", {"npu/driver/release": "25.5.0"}, "25.5.0"),
    Broken("npu.firmware", {"npu/firmware/package_version": "24.1.0"}, "24.1.0"),
    Broken("npu.compatible", {"npu/boards/3/compatibility": "NOT OK"}, "NPU 3: NOT OK"),
    Broken("npu.smi-found", {"npu/smi": {"missing": True}}, "none", CONTAINER),
    Broken(
        "npu.smi",
        {"npu/smi": {"failed": "npu-smi ended with 255: dcmi module initialize failed. ret is -8005", "code": -8005}},
        "-8005",
        CONTAINER,
    ),
    Broken("npu.smi-version", {"npu/smi/version": "23.0.6"}, "23.0.6"),
    Broken("npu.nodes", {"npu/nodes/7": GONE}, "7"),
    Broken("npu.managers", {"npu/nodes/10": GONE}, "none"),
    Broken("npu.permissions", {"npu/nodes/0/usable": False}, "1 × 0o660 (/dev/davinci0, gid 1000)"),
    Broken("npu.warnings", {"npu/smi/chips/2/health": "Warning"}, "NPU 2: Warning"),
    Broken("npu.health", {"npu/smi/chips/5/health": "Alarm"}, "NPU 5: Alarm"),
    Broken("npu.count", {"npu/nodes": [{"name": "davinci0", "usable": True}]}, "1"),
    Broken("npu.server", {"npu/smi/chips/7": GONE}, "7"),
    Broken("npu.server", {"npu/smi/chips/15": GONE}, "15", A3, fit={"launch.hardware": "Atlas 800T A3"}),
    Broken("npu.generation", {}, "Atlas A2", values={"launch.hardware": "Atlas 800T A3"}),
    Broken("npu.memory", {"npu/smi/chips/1/hbm_total_mb": 32768}, "32 GiB"),
    Broken("npu.idle", {"npu/smi/processes": [PROCESS, {**PROCESS, "npu": 1}]}, "process 4711 python3 on NPU 0, 1"),
    Broken("npu.memory-free", {"npu/smi/chips/2/hbm_used_mb": 61220}, "61220 MB (NPU 2)"),
    Broken("npu.temperature", {"npu/smi/chips/4/temperature": 97.0}, "NPU 4: 97 °C"),
    Broken("npu.visible", env("ASCEND_RT_VISIBLE_DEVICES", "0,8"), "'0,8'"),
    # container
    Broken("container.driver-libraries", {"container/given/driver_libraries": False}, "none", CONTAINER),
    Broken("container.dcmi", {"container/given/dcmi": False}, "none", CONTAINER),
    Broken("container.install-info", {"container/given/install_info": False}, "none", CONTAINER),
    Broken("container.hccn", {"container/given/hccn_conf": False}, "none", CONTAINER),
    Broken("container.rights", {"container/capabilities/DAC_OVERRIDE": False}, "none", CONTAINER),
    Broken("container.network", {"network/interfaces/0/addresses": ["172.17.0.3"]}, "172.17.0.3", CONTAINER),
    Broken("container.docker", {"container/docker": "18.09.0"}, "18.09.0"),
    # the image
    Broken("image.matrix", {"image/matrix": "commercial"}, "expected performance, found commercial", IMAGE),
    Broken("image.packages", {"packages/transformers": "4.52.4"}, "found transformers 4.52.4", IMAGE),
    Broken("image.packages", {"packages/ray": GONE}, "found ray none", IMAGE),
    Broken("image.added", {"packages/wandb": "0.22.3"}, "wandb 0.22.3", IMAGE),
    Broken("image.components", {"stack/sources/verl/commit": "f" * 40}, "expected verl 21271aab, found ffff", IMAGE),
    Broken("image.components", {"stack/sources/vllm": INDEX}, "expected vllm b8b302cd, found index", IMAGE),
    Broken("image.components", {"stack/trees/megatron/commit": "e" * 40}, "expected megatron-lm a845aa7e", IMAGE),
    Broken(
        "image.components",
        {"stack/sources/mindspeed": {"version": "0.12.1", "from": "folder", "folder": "/data/MindSpeed"}},
        "found /data/MindSpeed",
        IMAGE,
    ),
    Broken(
        "image.patches",
        {},
        "expected verl/rollout-seeds: applied, found pending",
        IMAGE,
        patches=(PatchState("verl/rollout-seeds", "pending", "F1"), APPLIED[1]),
    ),
    # CANN and NNAL
    Broken("cann.installed", {"cann/toolkits": [], "cann/sourced": {"unknown": "KeyError"}}, "none"),
    Broken("cann.version", {"cann/sourced/version": "8.2.RC1"}, "8.2.RC1"),
    Broken("cann.version", {"cann/sourced/version": "8.3.RC1.alpha002"}, "alpha002"),
    Broken("cann.known", {"cann/sourced/version": "8.5.0"}, "8.5.0"),
    Broken("cann.sourced", {"cann/sourced": {"unknown": "KeyError: 'ASCEND_HOME_PATH'"}}, "which holds no toolkit"),
    Broken("cann.latest", {"cann/toolkits/0/version": "8.5.0"}, "8.3.RC1"),
    Broken("cann.mixed", {"cann/library_versions": ["8.2.RC1", "8.3.RC1"]}, "8.2.RC1, 8.3.RC1"),
    Broken("cann.machine", {"cann/sourced/machine": "x86_64"}, "x86_64"),
    Broken("cann.kernels", {"cann/kernels": ["ascend310p"]}, "ascend310p"),
    Broken("cann.kernels", {"cann/kernels": ["ascend910b"]}, "ascend910b", A3),
    Broken("cann.kernels-version", {"cann/sourced/running/opp_kernel": "8.2.RC1"}, "8.2.RC1"),
    Broken("cann.nnal", {"cann/nnal": {"unknown": "FileNotFoundError"}}, "none"),
    Broken("cann.nnal-version", {"cann/nnal/version": "8.2.RC1"}, "8.2.RC1"),
    Broken("cann.nnal-sourced", {"environment/ATB_HOME_PATH": GONE}, "none"),
    Broken("cann.nnal-abi", env("ATB_HOME_PATH", "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_0"), "cxx_abi_0"),
    Broken(
        "cann.library-driver", {"cann/libraries/libascend_hal.so": {"loads": False, "reason": "no such"}}, "no such"
    ),
    Broken("cann.library-runtime", {"cann/libraries/libascendcl.so": {"loads": False, "reason": "no such"}}, "no such"),
    Broken("cann.library-hccl", {"cann/libraries/libhccl.so": {"loads": False, "reason": "no such"}}, "no such"),
    Broken("cann.library-atb", {"cann/libraries/libatb.so": {"loads": False, "reason": "undefined x"}}, "undefined x"),
    # packages
    Broken("packages.torch", {"packages/torch": "2.8.0"}, "2.8.0"),
    Broken("packages.torch-cpu", {"packages/torch": "2.13.0"}, "2.13.0", LAPTOP, "cpu"),
    Broken("packages.torch-npu", {"packages/torch-npu": "2.7.1.dev20250724"}, "dev20250724"),
    Broken("packages.torch-npu", {"packages/torch-npu": "2.7.1.post2"}, "post2"),
    Broken("packages.verl", {"stack/sources/verl/commit": "f" * 40}, "f" * 40),
    Broken("packages.verl", {"stack/sources/verl": INDEX, "packages/verl": "0.6.0"}, "0.6.0 (index)"),
    Broken("packages.verl", {"packages/verl": "0.5.0"}, "0.5.0", LAPTOP, "cpu"),
    Broken("packages.vllm", {"stack/sources/vllm/commit": "e" * 40}, "e" * 40),
    Broken("packages.vllm-ascend", {"stack/sources/vllm-ascend/commit": "d" * 40}, "d" * 40),
    Broken("packages.mindspeed", {"packages/mindspeed": GONE}, "none"),
    Broken("packages.tensordict", {"packages/tensordict": "0.9.1"}, "0.9.1"),
    Broken("packages.megatron", {"stack/trees/megatron/commit": "c" * 40}, "c" * 40),
    Broken(
        "packages.megatron",
        {"stack/trees/megatron/commit": None, "packages/megatron-core": "0.13.0"},
        "0.13.0",
    ),
    Broken("packages.megatron", {"stack/sources/megatron-core/commit": "b" * 40}, "b" * 40, IMAGE),
    Broken("packages.megatron-once", {"stack/modules/megatron": ["/a/megatron", "/b/megatron"]}, "/a/megatron, /b/"),
    Broken("packages.mindspeed-real", {"stack/mindspeed_adaptor": False}, "mindspeed 0.12.1"),
    Broken("packages.torch-pair", {"packages/torch-npu": "2.6.0.post3"}, "torch-npu 2.6.0.post3"),
    Broken("packages.torch-cuda", {"packages/nvidia-cublas-cu12": "12.6"}, "nvidia-cublas-cu12"),
    Broken("packages.torch-cuda", {"packages/torch": "2.7.1+cu126"}, "torch +cu126"),
    Broken("packages.torchvision", {"packages/torchvision": "0.20.1"}, "0.20.1"),
    Broken("packages.transformers", {"packages/transformers": "4.52.4"}, "4.52.4"),
    Broken("packages.transformers", {"packages/transformers": "5.0.0"}, "5.0.0"),
    Broken("packages.numpy", {"packages/numpy": "2.2.6"}, "2.2.6"),
    Broken("packages.opencv", {"packages/opencv-python-headless": "4.12.0.88"}, "4.12.0.88"),
    Broken("packages.uvloop", {"packages/uvloop": "0.22.1"}, "0.22.1"),
    Broken("packages.ray", {"packages/ray": "2.49.0"}, "2.49.0"),
    Broken(
        "packages.triton", {"packages/triton": "3.3", "packages/triton-ascend": "3.2.0rc4"}, "triton-ascend 3.2.0rc4"
    ),
    Broken("packages.triton-gpu", {"packages/triton": "3.3.1"}, "triton 3.3.1"),
    Broken("packages.vllm-empty", {"packages/vllm": "0.11.0"}, "0.11.0"),
    Broken("packages.vllm-version", {"packages/vllm": "0.10.1.dev12+g3821787.empty"}, "dev12"),
    Broken(
        "packages.vllm-pair", {"packages/vllm": "0.10.2", "packages/vllm-ascend": "0.11.0rc1"}, "0.10.2", LAPTOP, "cpu"
    ),
    Broken("packages.kernels", {"stack/ascend_kernels/compiled": []}, "none"),
    Broken("packages.kernels", {"stack/ascend_kernels/sleep_mode": False}, "__sleep_mode_enabled__ = False"),
    Broken("packages.flash-attn", {"packages/flash-attn": "2.7.4"}, "flash-attn 2.7.4"),
    Broken(
        "packages.twice", {"stack/duplicates": {"numpy": ["1.26.0 in /a", "2.2.6 in /b"]}}, "numpy 1.26.0 in /a, 2.2.6"
    ),
    Broken("packages.shadowed", {"stack/in_folder": ["torch_npu"]}, "/opt/ascend-rl/torch_npu"),
    Broken(
        "packages.folders",
        {"stack/sources/verl": {"version": "0.7", "from": "folder", "folder": "/verl", "exists": False}},
        "none",
    ),
    # network
    Broken("network.npu-ports", {"npu/ports": {}}, "none"),
    Broken("network.link", {"npu/ports/6/link": "DOWN"}, "NPU 6"),
    Broken("network.address", {"npu/ports/2/address": GONE}, "NPU 2"),
    Broken("network.address-once", {"npu/ports/3/address": "10.20.2.11"}, "10.20.2.11: NPU 2, 3"),
    Broken("network.health", {"npu/ports/1/net_health": "Receive timeout"}, "NPU 1: Receive timeout"),
    Broken("network.tls", {"npu/ports/0/tls": True}, "NPU 0"),
    Broken("network.interfaces", env("HCCL_SOCKET_IFNAME", "eth0"), "enp189s0f0"),
    Broken(
        "network.interfaces-named",
        {"network/interfaces/1": {"name": "eno1", "addresses": ["10.11.0.1"], "up": True}},
        "none",
    ),
    Broken("network.own-address", env("HCCL_IF_IP", "10.10.0.99"), "10.10.0.99"),
    Broken("network.hostname", {"network/hostname_addresses": ["127.0.1.1"]}, "127.0.1.1"),
    Broken("network.proxy", env("http_proxy", "http://proxy:3128"), "http_proxy"),
    Broken("network.ports-hccl", {"network/held_ports": [60000, 60003]}, "60000, 60003"),
    Broken("network.ports-reserved", {"network/reserved_ports": ""}, "32768-60999"),
    # Ray
    Broken("ray.leftovers", {"ray/daemons": [RAYLET]}, "raylet 99"),
    Broken("ray.address", env("RAY_ADDRESS", "10.10.0.50:6379"), "10.10.0.50:6379"),
    Broken("ray.port", {"network/held_ports": [6379]}, "another program"),
    Broken("ray.socket-path", env("RAY_TMPDIR", "/srv/somebody/with/a/long/path/tmp"), "/srv/somebody"),
    Broken("ray.environment", {"ray/daemons": [{**RAYLET, "sourced": False}]}, "raylet 99 without it"),
    # environment
    Broken("environment.task-queue", {}, "launch.env.TASK_QUEUE_ENABLE: 2", values=recipe_env(TASK_QUEUE_ENABLE=2)),
    Broken("environment.fractal-nz", {}, "none, which is 1", values=recipe_env(VLLM_ASCEND_ENABLE_NZ=None)),
    Broken(
        "environment.allocator", env("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True"), "PYTORCH_NPU_ALLOC_CONF"
    ),
    Broken("environment.connections", env("CUDA_DEVICE_MAX_CONNECTIONS", "8"), "CUDA_DEVICE_MAX_CONNECTIONS: 8"),
    Broken("environment.launch-blocking", env("ASCEND_LAUNCH_BLOCKING", "1"), "1"),
    Broken("environment.launch-blocking-slow", env("ASCEND_LAUNCH_BLOCKING", "1"), "waits", fit=EAGER),
    Broken("environment.event-timeout", env("HCCL_EVENT_TIMEOUT", "1800"), "1800"),
    Broken("environment.group-timeout", {}, "7200", values={"actor_rollout_ref.nccl_timeout": 7200}),
    Broken("environment.patience", {}, "600", values=recipe_env(HCCL_EXEC_TIMEOUT=600)),
    Broken("environment.connect-timeout", {}, "120", values=recipe_env(HCCL_CONNECT_TIMEOUT=120)),
    Broken("environment.error-handling", {}, "1", values=recipe_env(HCCL_ASYNC_ERROR_HANDLING=1)),
    Broken(
        "environment.jemalloc", {}, "x86_64", values=recipe_env(LD_PRELOAD="/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")
    ),
    Broken("environment.preload", {}, "$JEMALLOC", values=recipe_env(LD_PRELOAD="$JEMALLOC")),
    Broken("environment.visible-devices", env("ASCEND_RT_VISIBLE_DEVICES", "0,1,2,3"), "'0,1,2,3'"),
    Broken("environment.v1-engine", env("VLLM_USE_V1", "0"), "V0 engine"),
    Broken("environment.numbers", env("HCCL_BUFFSIZE", "200MB"), "'200MB'"),
    Broken("environment.affinity", env("CPU_AFFINITY_CONF", "2"), "2 without ranges"),
    # the recipe
    Broken("recipe.model", {f"paths/{MODEL}/entries": 0}, "an empty folder"),
    Broken("recipe.megatron-weights", {f"paths/{WEIGHTS}/exists": False}, "none"),
    Broken("recipe.data", {f"paths/{DATA}/exists": False}, "none"),
    Broken("recipe.checkpoint-writable", {f"paths/{CHECKPOINT}/writable": False}, "/data/checkpoints"),
    Broken("recipe.checkpoint-shared", local(CHECKPOINT), "/data/checkpoints (xfs)"),
    Broken("recipe.kept", local(CHECKPOINT, "overlay"), "/data/checkpoints", CONTAINER),
    Broken("recipe.data-shared", local(MODEL), "/data/qwen3-235b-a22b/model (xfs)"),
    Broken("recipe.host-memory", {"memory/total": 256 * GIB}, "found 256 GiB"),
    Broken("recipe.host-memory", {"memory/limit": 200 * GIB}, "found 200 GiB", CONTAINER),
    Broken("recipe.preload", {"cann/preloads/0/exists": False}, "none"),
    Broken(
        "recipe.patches-drifted",
        {},
        "verl/real-compile: no such function",
        patches=(PatchState("verl/real-compile", "drifted", "F4", "no such function"),),
    ),
    Broken(
        "recipe.patches-applied",
        {},
        "verl/rollout-seeds (F1)",
        patches=(PatchState("verl/rollout-seeds", "pending", "F1"),),
    ),
)

COMMERCIAL = {  # what the performance machine has otherwise, for the checks that only the commercial matrix has
    "stack/modules/verl_npu": ["/opt/MindSpeed-RL/rl-plugin/verl_npu"],
    "stack/verl_loads_plugin": True,
}
COMMERCIAL_CASES = (
    ("packages.rl-plugin", {**COMMERCIAL, "stack/verl_loads_plugin": False}, "none"),
    ("packages.transformers", {**COMMERCIAL, "packages/transformers": "4.55.2"}, "4.55.2"),
)
