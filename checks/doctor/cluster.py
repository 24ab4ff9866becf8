"""A cluster: facts from every node of a running Ray, and what must be the same on all of them.

Each node gets one task, which needs nothing of this project there: the sources of `checks.facts` travel with it and run
in a process of their own, with the environment that Ray's workers have.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from checks.doctor.check import ALL, NPU, Case, Check, Fault, Skip
from checks.doctor.document import Facts, Missing, checked
from checks.doctor.npu import count_nodes
from checks.doctor.verdict import Result, judge
from checks.facts.packages import STACK
from checks.words import Text
from errors import UserError
from matrix import Matrix

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0  # for all nodes; they answer side by side
CONNECT_SECONDS = 5.0
SKEW = 5.0  # seconds between clocks
CHECKPOINT = "trainer.default_local_dir"
TOKEN = "cluster.token"  # key of the file that shows whether the checkpoint folder is shared
# Variables that belong to one host.
OWN = ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "ASCEND_RT_VISIBLE_DEVICES")
SAME = (
    "HCCL_",
    "VLLM_",
    "TASK_QUEUE",
    "PYTORCH_",
    "ASCEND_",
    "ATB_",
    "CPU_AFFINITY",
    "LD_PRELOAD",
    "PYTHONPATH",
    "OMP_",
)


def collect(named: Mapping[str, str], address: str | None = None) -> dict[str, Facts]:
    """Facts by node of the Ray at `address`, else of the one that this machine has last started or joined.

    A silent node has why in their place. UserError where there is no Ray.
    """
    ray = _connect(address or _last_started())
    try:
        with _token(named) as paths:
            return dict(_answers(ray, paths))
    finally:
        ray.shutdown()


def _last_started() -> str | None:
    """The address that `ray start` leaves for ray.init(address="auto")."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _connect(address: str | None):
    """Ray, connected. A port that nobody answers is found out before Ray does, which takes minutes."""
    remedy = "start one (`ray start --head …`), name it with RAY_ADDRESS, or use --facts FILE"
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError):
        raise UserError(f"--cluster: expected a Ray cluster that runs, found none at {address}; {remedy}") from None
    try:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ImportError, ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"--cluster: expected a Ray cluster that runs, found: {first}; {remedy}") from None
    return ray


@contextlib.contextmanager
def _token(named: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The paths, with a new file in the checkpoint folder among them, which other nodes see only if it is shared."""
    folder = Path(named[CHECKPOINT]) if CHECKPOINT in named else None
    token = folder / f".doctor-{uuid.uuid4().hex}" if folder and folder.is_dir() else None
    if token is not None:
        with contextlib.suppress(OSError):  # recipe.checkpoint-writable says so
            token.touch()
    try:
        yield {**named, **({TOKEN: str(token)} if token else {})}
    finally:
        if token is not None:
            token.unlink(missing_ok=True)


def sources() -> dict[str, str]:
    """What collects facts, by path."""
    files = [ROOT / "checks" / "__init__.py", ROOT / "checks" / "secrets.py", *(ROOT / "checks" / "facts").glob("*.py")]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def _answers(ray, named: Mapping[str, str]) -> Iterator[tuple[str, Facts]]:
    """Each live node's name and facts; those of a node that does not answer are only why."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def facts_of_node(files: dict, named: str) -> str:
        # Nothing from this module: a nested function travels by value.
        import pathlib
        import subprocess
        import sys
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "checks.facts", named]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=45)
            if done.returncode:
                raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
            return done.stdout

    nodes = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(facts_of_node)
    began, files = time.time(), ray.put(sources())
    asked = {}
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[node["NodeID"]] = task.options(scheduling_strategy=place).remote(files, json.dumps(dict(named)))
    done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=SECONDS)
    for node, name in zip(nodes, names(nodes), strict=True):
        yield name, _answer(ray, node, asked[node["NodeID"]], done, (began, time.time()))


def _answer(ray, node: dict, reference, done: list, interval: tuple[float, float]) -> Facts:
    if reference not in done:
        return Facts({"unknown": f"no answer within {SECONDS:g} s"})
    try:
        document = json.loads(ray.get(reference))
    except (ray.exceptions.RayError, ValueError) as error:
        return Facts({"unknown": str(error).strip().rpartition("\n")[2]})
    clock = checked(document, "a node's facts").number("system/clock")
    document["node"] = {
        "address": node["NodeManagerAddress"],
        "npus": node["Resources"].get("NPU"),
        "skew": max(interval[0] - clock, clock - interval[1], 0.0),
    }
    return Facts(document)


def names(nodes: list[dict]) -> list[str]:
    """A name for each node: its host's, with the address and then the id where hosts share one."""
    found = [str(node["NodeManagerHostname"]) for node in nodes]
    for part in ("NodeManagerAddress", "NodeID"):
        counts = Counter(found)
        pairs = zip(found, nodes, strict=True)
        found = [name if counts[name] == 1 else f"{name}-{str(node[part])[:15]}" for name, node in pairs]
    return found


@dataclass(frozen=True)
class Machines:
    """What checks between machines look at: a case for each, by name."""

    cases: Mapping[str, Case]

    @property
    def matrix(self) -> Matrix:
        return next(iter(self.cases.values())).matrix

    def each(self, read: Callable[[Case], object]) -> dict[str, object]:
        """A fact of every machine that has it. Skipped where fewer than two have."""
        found = {}
        for name, case in self.cases.items():
            with contextlib.suppress(Missing, Skip):
                found[name] = read(case)
        if len(found) < 2:
            raise Skip(Text("fewer than two machines say", "不足两台机器给出该信息"))
        return found


def compare(cases: Mapping[str, Case]) -> list[Result]:
    """The results of the checks between machines."""
    return judge(Machines(cases), CHECKS)


CHECKS: list[Check] = []


def check(id: str, en: str, zh: str, level: str = "fail", matrices: tuple = NPU, problem: str = ""):
    """Enters a check between machines."""

    def decorate(body: Callable[[Machines], Iterator[Fault]]):
        CHECKS.append(Check(f"cluster.{id}", Text(en, zh), body, level, (), matrices, problem))
        return body

    return decorate


def differing(found: Mapping[str, object], remedy: str | Text, what: str = "") -> Iterator[Fault]:
    """The machines that differ from most."""
    values = Counter(map(str, found.values()))
    usual = values.most_common(1)[0][0]
    others = [f"{name}: {value}" for name, value in found.items() if str(value) != usual]
    if others:
        shown = f"{what} {usual}".strip()
        yield Fault(shown, ", ".join(others[:8]) + (" …" if len(others) > 8 else ""), remedy)


@check("answered", "every machine's facts could be had", "所有机器的事实均可获取", matrices=ALL, problem="C14")
def answered(machines: Machines) -> Iterator[Fault]:
    for name, case in machines.cases.items():
        if why := case.facts.why("format"):
            reason = case.facts.value.get("unknown", why) if isinstance(case.facts.value, dict) else why
            yield Fault(Text("an answer", "应答"), f"{name}: {reason}", f"ssh {name} python3 -m checks.facts")


def _same(id: str, path: str, en: str, zh: str, remedy: str | Text, **options) -> None:
    """A check that a text is the same everywhere."""

    @check(id, en, zh, **options)
    def body(machines: Machines) -> Iterator[Fault]:
        yield from differing(machines.each(lambda case: case.facts.text(path)), remedy)


HDK = Text("install one HDK on all hosts", "所有主机安装同一 HDK")
IMAGE = Text("start one image on all nodes", "所有节点使用同一镜像")
_same("driver", "npu/driver/release", "drivers are the same", "驱动版本一致", HDK, problem="C22")
_same("firmware", "npu/firmware/package_version", "firmware is the same", "固件版本一致", HDK, problem="C22")
_same("cann", "cann/sourced/version", "CANN is the same", "CANN 版本一致", IMAGE, problem="C22")
_same("nnal", "cann/nnal/version", "NNAL is the same", "NNAL 版本一致", IMAGE, problem="C22")
_same("python", "python/version", "Python is the same", "Python 版本一致", IMAGE, matrices=ALL, problem="F20")
_same("machine", "system/machine", "processors are of one kind", "处理器架构一致", IMAGE, matrices=ALL)
_same("kernel", "system/kernel", "kernels are the same", "内核版本一致", Text("update them", "统一升级"), level="warn")


@check("packages", "packages are the same", "Python 包一致", matrices=ALL, problem="F20")
def packages(machines: Machines) -> Iterator[Fault]:
    found = machines.each(lambda case: {name: fact.value for name, fact in case.facts.table("packages").items()})
    for name in (*STACK, "numpy", "uvloop", "click"):
        versions = {node: table.get(name, "none") for node, table in found.items()}
        yield from differing(versions, IMAGE, name)


@check("commits", "commits are the same", "源码提交一致", matrices=ALL)
def commits(machines: Machines) -> Iterator[Fault]:
    for name in STACK:
        path = f"stack/sources/{name}/commit"
        with contextlib.suppress(Skip):
            yield from differing(machines.each(lambda case, path=path: case.facts.text(path)), IMAGE, name)


@check("environment", "variables are the same", "环境变量一致", matrices=ALL, problem="C3")
def environment(machines: Machines) -> Iterator[Fault]:
    """Workers have the raylet's environment: it must be right on every node before `ray start`."""
    found = machines.each(lambda case: {name: fact.value for name, fact in case.facts.table("environment").items()})
    names_ = {name for table in found.values() for name in table if name.startswith(SAME) and name not in OWN}
    for name in sorted(names_):
        values = {node: table.get(name, "none") for node, table in found.items()}
        yield from differing(values, Text(f"export {name}=… before ray start", f"ray start 前 export {name}=…"), name)


@check("chips", "machines have the same chips", "芯片型号与数量一致", problem="C7")
def chips(machines: Machines) -> Iterator[Fault]:
    def kinds(case: Case) -> str:
        counts = Counter(row.text("name") for row in case.facts.rows("npu/smi/chips"))
        return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))

    yield from differing(machines.each(kinds), "npu-smi info")


@check("tls", "TLS is on for all ports or for none", "所有网口 TLS 设置一致", problem="C3")
def tls(machines: Machines) -> Iterator[Fault]:
    """HCCL's handshake fails between ports that differ: "Getting socket times out"."""

    def states(case: Case) -> str:
        found = {row.flag("tls") for row in case.facts.table("npu/ports").values() if row.has("tls")}
        if not found:
            raise Skip(Text("unknown", "未知"))
        return "/".join("on" if state else "off" for state in sorted(found))

    yield from differing(machines.each(states), "for i in {0..7}; do hccn_tool -i $i -tls -s enable 0; done", "TLS")


@check("addresses", "no two NPUs have one address", "NPU 网口地址不重复", problem="C3")
def addresses(machines: Machines) -> Iterator[Fault]:
    def own(case: Case) -> list[str]:
        return [row.text("address") for row in case.facts.table("npu/ports").values() if row.has("address")]

    holders: dict[str, list[str]] = {}
    for name, found in machines.each(own).items():
        for address in found:
            holders.setdefault(address, []).append(name)
    for address, group in holders.items():
        if len(group) > 1:
            yield Fault(
                Text("one each", "各不相同"), f"{address}: {', '.join(group)}", "hccn_tool -i N -ip -s address …"
            )


@check("clocks", "clocks agree", "时钟一致", level="warn", matrices=ALL)
def clocks(machines: Machines) -> Iterator[Fault]:
    """Time-outs do not suffer, but logs of several nodes cannot be put in order."""
    for name, skew in machines.each(lambda case: case.facts.number("node/skew")).items():
        if skew > SKEW:
            yield Fault(f"< {SKEW:g} s", f"{name}: {skew:.0f} s", "chronyc makestep")


@check("npus", "Ray knows every NPU", "Ray 已登记全部 NPU", problem="C7")
def npus(machines: Machines) -> Iterator[Fault]:
    """Ray counts them when it starts; a raylet from before set_env.sh registers none."""
    for name, (registered, there) in machines.each(_registered).items():
        if registered < there:
            remedy = f"source …/set_env.sh; ray start … --resources='{{\"NPU\": {there}}}'"
            yield Fault(f"{name}: {there}", f"{registered:g}", remedy)


def _registered(case: Case) -> tuple[float, int]:
    if not case.facts.has("node"):
        raise Skip(Text("no Ray", "没有 Ray"))
    return case.facts.number("node/npus") if case.facts.has("node/npus") else 0, count_nodes(case.facts)


@check("size", "as many machines as the recipe uses", "机器数满足配方", matrices=ALL, problem="C7")
def size(machines: Machines) -> Iterator[Fault]:
    wanted = next(iter(machines.cases.values())).size("trainer.nnodes")
    if len(machines.cases) < wanted:
        yield Fault(
            str(wanted), str(len(machines.cases)), f"invoke lint --nodes {len(machines.cases)}; ray start --address …"
        )


@check(
    "checkpoint", "the checkpoint folder is the same on all", "检查点目录为同一共享目录", matrices=ALL, problem="E18"
)
def checkpoint(machines: Machines) -> Iterator[Fault]:
    """A file made on this machine is looked for on the others: else every node keeps a part of a checkpoint."""
    seen = machines.each(lambda case: case.facts.flag(f"paths/{TOKEN}/exists"))
    blind = [name for name, sees in seen.items() if not sees]
    if blind:
        yield Fault(Text("shared", "共享"), ", ".join(blind), f"--set {CHECKPOINT}=/…/shared")
