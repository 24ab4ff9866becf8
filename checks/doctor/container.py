"""What a container must have been given: the driver's parts, memory, rights, the network."""

from collections.abc import Iterator

from checks.doctor import versions
from checks.doctor.check import Case, Fault, Skip, check
from checks.doctor.npu import NONE
from checks.words import Text

DOCKER = "20.10"  # older ones refuse the archives of current images (vllm-ascend's FAQ)
BRIDGES = ("172.17.", "172.18.", "10.88.")  # the networks that Docker and Podman give by themselves


def _inside(case: Case) -> None:
    if not case.facts.has("container/kind"):
        raise Skip(Text("not a container", "不在容器内"))


def _given(case: Case, part: str, path: str) -> Iterator[Fault]:
    _inside(case)
    if not case.facts.flag(f"container/given/{part}"):
        yield Fault(path, NONE, f"docker run -v {path}:{path}:ro …")


@check("container.driver-libraries", "the driver's libraries are mounted", "已挂载驱动库", problem="B1")
def driver_libraries(case: Case) -> Iterator[Fault]:
    yield from _given(case, "driver_libraries", "/usr/local/Ascend/driver/lib64")


@check("container.dcmi", "the device management library is mounted", "已挂载 dcmi", problem="B1")
def dcmi(case: Case) -> Iterator[Fault]:
    yield from _given(case, "dcmi", "/usr/local/dcmi")


@check("container.install-info", "the driver's install record is mounted", "已挂载 ascend_install.info", problem="B1")
def install_info(case: Case) -> Iterator[Fault]:
    yield from _given(case, "install_info", "/etc/ascend_install.info")


@check("container.hccn", "the NPU ports' configuration is mounted", "已挂载 hccn.conf", level="warn", problem="C3")
def hccn(case: Case) -> Iterator[Fault]:
    if case.nodes < 2:
        raise Skip(Text("one node", "单节点"))
    yield from _given(case, "hccn_conf", "/etc/hccn.conf")


@check("container.rights", "root in the container may open the device nodes", "容器内 root 可打开设备", problem="B2")
def rights(case: Case) -> Iterator[Fault]:
    """Without CAP_DAC_OVERRIDE root is held to the nodes' group: npu-smi says -8005."""
    _inside(case)
    if case.facts.number("system/user") == 0 and not case.facts.flag("container/capabilities/DAC_OVERRIDE"):
        yield Fault("CAP_DAC_OVERRIDE", NONE, "docker run --cap-add DAC_OVERRIDE …")


@check("container.network", "the container has the host's network", "容器使用主机网络", problem="C5")
def network(case: Case) -> Iterator[Fault]:
    """Nodes reach one another, and HCCL its host ports, by the host's addresses."""
    _inside(case)
    if case.nodes < 2:
        raise Skip(Text("one node", "单节点"))
    rows = [row for row in case.facts.rows("network/interfaces") if row.text("name") != "lo"]
    own = [address for row in rows for address in row.texts("addresses") if "." in address]
    if own and all(address.startswith(BRIDGES) for address in own):
        yield Fault("--network host", ", ".join(own), "docker run --network host …")


@check("container.docker", f"Docker is at least {DOCKER}", f"Docker 不低于 {DOCKER}", level="warn", problem="B7")
def docker(case: Case) -> Iterator[Fault]:
    if not case.facts.has("container/docker"):
        raise Skip(Text("no Docker here", "没有 Docker"))
    found = case.facts.text("container/docker")
    if versions.older(found, DOCKER):
        yield Fault(DOCKER, found, Text("update Docker on the host", "升级主机的 Docker"))
