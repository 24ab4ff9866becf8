"""NPUs, driver and firmware: there, of the right version, healthy, free, and ours to use."""

from collections.abc import Callable, Iterator

from checks.doctor import versions
from checks.doctor.check import Case, Fault, Skip, check
from checks.doctor.document import Facts, Missing
from checks.doctor.host import size
from checks.facts.npu import MANAGERS
from checks.words import Text

NONE = Text("none", "无")
IDLE_MB = 8192  # of HBM; an idle chip of 64 GB shows some 3 GB in use
HBM_MB = 60000  # recipes are made for 64 GB
HOT = 85  # degrees Celsius; npu-smi's own warning level depends on the board
# Chips of a server, by what npu-smi or the bus call it.
SERVERS = {"A2": 8, "A3": 16}
DCMI = {  # what the driver's errors mean, in a container above all
    -8005: Text(
        "stop the container that holds the NPU; run it as invoke image --print says; for root: --cap-add DAC_OVERRIDE",
        "停止占用 NPU 的容器；按 invoke image --print 的命令启动；root 需要 --cap-add DAC_OVERRIDE",
    ),
    -8020: Text(
        "stop what uses the device; source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        "停止占用设备的进程；source /usr/local/Ascend/ascend-toolkit/set_env.sh",
    ),
}


def count_nodes(facts: Facts) -> int:
    """Device nodes of chips."""
    return sum(row.text("name")[len("davinci") :].isdigit() for row in facts.rows("npu/nodes"))


def generation(facts: Facts) -> str:
    """`A2` or `A3`, from the chips' names or else from the bus. Missing where neither says."""
    if facts.has("npu/smi/chips"):
        for row in facts.rows("npu/smi/chips"):
            if row.text("name").startswith("910B"):
                return "A2"
            if row.text("name") == "Ascend910" and row.has("physical"):
                return "A3"
    kinds = {row.text("chip") for row in facts.rows("npu/bus")}
    named = {"910B": "A2", "910_93": "A3"}
    found = {named[kind] for kind in kinds if kind in named}
    if len(found) != 1:
        raise Missing(f"npu: neither npu-smi nor the bus names an Atlas A2 or A3, found {sorted(kinds) or 'nothing'}")
    return found.pop()


def chips(facts: Facts) -> list[Facts]:
    """npu-smi's chips. Missing where it shows none."""
    found = facts.rows("npu/smi/chips")
    if not found:
        raise Missing("npu/smi/chips: npu-smi shows no chip, or in a form that is not known")
    return found


@check("npu.present", "the machine has NPUs", "机器上有 NPU", after=())
def present(case: Case) -> Iterator[Fault]:
    signs = [place for place in ("npu/bus", "npu/nodes", "npu/smi/chips") if case.facts.has(place)]
    if not signs and not case.facts.has("npu/smi"):
        raise Missing(case.facts.why("npu/bus"))
    if not any(case.facts.rows(place) for place in signs):
        yield Fault(
            Text("an Ascend NPU", "昇腾 NPU"),
            NONE,
            Text(
                "judge a machine with NPUs; here, run on emulated ones: invoke train --recipe smoke, --rehearse",
                "在带 NPU 的机器上检查；本机可用模拟 NPU：invoke train --recipe smoke，--rehearse",
            ),
        )


@check("npu.driver", "the driver is installed", "驱动已安装", problem="B1")
def driver(case: Case) -> Iterator[Fault]:
    if case.facts.absent("npu/driver/release"):
        inside = case.facts.has("container/kind")
        mount = "docker run -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro …"
        install = f"./Ascend-hdk-…-driver_{case.component('hdk').version}_linux-{_machine(case)}.run --full"
        yield Fault("/usr/local/Ascend/driver/version.info", NONE, mount if inside else install)


def _machine(case: Case) -> str:
    return case.facts.text("system/machine").replace("_", "-")


@check(
    "npu.driver-version",
    "the driver is no older than the matrix's",
    "驱动版本不低于矩阵",
    after=("npu.driver",),
)
def driver_version(case: Case) -> Iterator[Fault]:
    wanted, found = case.component("hdk").version, case.facts.text("npu/driver/release")
    if versions.older(found, wanted):
        yield Fault(wanted, found, Text(f"install HDK {wanted} on the host", f"在主机上安装 HDK {wanted}"))


@check(
    "npu.driver-known", "the driver is the one that the matrix names", "驱动版本正是矩阵所列", level="warn",
    after=("npu.driver-version",),
)  # fmt: skip
def driver_known(case: Case) -> Iterator[Fault]:
    wanted, found = case.component("hdk").version, case.facts.text("npu/driver/release")
    if versions.older(wanted, found):
        yield Fault(wanted, found, Text("watch for drift: nobody tried this pair here", "注意：此组合未经验证"))


@check(
    "npu.firmware",
    "firmware and driver are of one release",
    "固件与驱动为同一版本",
    after=("npu.driver",),
)
def firmware(case: Case) -> Iterator[Fault]:
    """Their packages carry one version; a container need not have the firmware's file."""
    if case.facts.has("container/kind") and not case.facts.has("npu/firmware/package_version"):
        raise Skip(Text("the container has no firmware file", "容器内没有固件版本文件"))
    wanted, found = case.facts.text("npu/driver/release"), case.facts.text("npu/firmware/package_version")
    if not versions.same(wanted, found):
        yield Fault(
            wanted, found, Text(f"install the firmware of HDK {wanted}, reboot", f"安装 HDK {wanted} 的固件并重启")
        )


@check("npu.compatible", "each board finds its firmware compatible", "每块单板固件兼容", after=("npu.smi",))
def compatible(case: Case) -> Iterator[Fault]:
    for number, row in case.facts.table("npu/boards").items():
        if row.has("compatibility") and row.text("compatibility").upper() != "OK":
            found = f"NPU {number}: {row.text('compatibility')} ({_shown(row, 'firmware_version')})"
            yield Fault("OK", found, Text("install driver and firmware of one HDK", "安装同一 HDK 的驱动与固件"))


def _shown(row: Facts, name: str) -> str:
    return row.text(name) if row.has(name) else "?"


@check("npu.smi-found", "npu-smi is there", "有 npu-smi", after=("npu.driver",), problem="B1")
def smi_found(case: Case) -> Iterator[Fault]:
    if case.facts.at("npu/smi").value == {"missing": True}:
        yield Fault("npu-smi", NONE, "docker run -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro …")


@check("npu.smi", "npu-smi can ask the driver", "npu-smi 可访问驱动", after=("npu.smi-found",), problem="B2")
def smi_works(case: Case) -> Iterator[Fault]:
    if case.facts.has("npu/smi/failed"):
        code = case.facts.at("npu/smi").value.get("code")
        general = Text(
            "npu-smi info, dmesg | tail; compare the container's mounts with the README's",
            "npu-smi info，dmesg | tail；对照 README 检查挂载",
        )
        remedy = DCMI.get(code, general) if isinstance(code, int) else general
        yield Fault(Text("a table", "一张表"), case.facts.text("npu/smi/failed"), remedy)


@check(
    "npu.smi-version",
    "npu-smi is the driver's",
    "npu-smi 与驱动同版本",
    level="warn",
    after=("npu.smi",),
)
def smi_version(case: Case) -> Iterator[Fault]:
    wanted, found = case.facts.text("npu/driver/release"), case.facts.text("npu/smi/version")
    if not versions.same(wanted, found):
        yield Fault(
            wanted, found, Text("mount the host's npu-smi, or reinstall the driver", "挂载主机的 npu-smi，或重装驱动")
        )


@check("npu.nodes", "every chip has a device node", "每颗芯片都有设备节点", after=("npu.smi",), problem="B4")
def nodes(case: Case) -> Iterator[Fault]:
    wanted, found = len(chips(case.facts)), count_nodes(case.facts)
    if found < wanted:
        yield Fault(
            f"{wanted} × /dev/davinciN", str(found), f"docker run --device /dev/davinci{found} …; invoke image --print"
        )


@check(
    "npu.managers",
    "the driver's managers have device nodes",
    "驱动管理设备节点齐全",
    after=("npu.driver",),
    problem="B2",
)
def managers(case: Case) -> Iterator[Fault]:
    there = {row.text("name") for row in case.facts.rows("npu/nodes")}
    for name in MANAGERS:
        if name not in there:
            yield Fault(f"/dev/{name}", NONE, f"docker run --device /dev/{name} …")


@check("npu.permissions", "this user may use the device nodes", "当前用户可使用设备节点", problem="B2")
def permissions(case: Case) -> Iterator[Fault]:
    closed = [row for row in case.facts.rows("npu/nodes") if not row.flag("usable")]
    if closed:
        first, group = closed[0], f"{closed[0].number('group'):g}"
        found = f"{len(closed)} × {first.text('mode')} (/dev/{first.text('name')}, gid {group})"
        name = f"$(getent group {group} | cut -d: -f1)"
        yield Fault("rw", found, f"usermod -aG {name} $USER; docker run --group-add {group} …")


@check("npu.warnings", "no chip has a minor alarm", "芯片没有一般告警", level="warn", after=("npu.smi",))
def warnings(case: Case) -> Iterator[Fault]:
    yield from _health(case, lambda state: state == "Warning")


@check("npu.health", "every chip is healthy", "每颗芯片状态正常", after=("npu.smi",))
def health(case: Case) -> Iterator[Fault]:
    yield from _health(case, lambda state: state not in ("OK", "Warning"))


def _health(case: Case, is_wrong: Callable[[str], bool]) -> Iterator[Fault]:
    for row in chips(case.facts):
        if is_wrong(row.text("health")):
            number = f"{row.number('npu'):g}"
            yield Fault("OK", f"NPU {number}: {row.text('health')}", f"npu-smi info -t health -i {number}")


@check(
    "npu.count", "as many chips as the recipe uses on a node", "芯片数满足配方要求", problem="C7", after=("npu.driver",)
)
def count(case: Case) -> Iterator[Fault]:
    wanted, found = case.size("trainer.n_gpus_per_node"), count_nodes(case.facts)
    if found < wanted:
        yield Fault(
            str(wanted), str(found), f"--set trainer.n_gpus_per_node={found}, docker run --device /dev/davinci{found} …"
        )


@check("npu.server", "no chip of the server is missing", "服务器芯片齐全", level="warn", after=("npu.smi",))
def server(case: Case) -> Iterator[Fault]:
    if case.facts.has("container/kind"):
        raise Skip(Text("a container may have been given some", "容器可能只分配了部分芯片"))
    wanted, found = SERVERS[generation(case.facts)], len(chips(case.facts))
    if found < wanted:
        yield Fault(str(wanted), str(found), "lspci -d 19e5:, dmesg | grep -i davinci")


@check("npu.generation", "the chips are those that the recipe is for", "芯片型号与配方一致")
def which_generation(case: Case) -> Iterator[Fault]:
    wanted, found = str(case.setting("launch.hardware")), generation(case.facts)
    if wanted.split()[-1] in SERVERS and wanted.split()[-1] != found:
        yield Fault(
            wanted,
            f"Atlas {found}",
            Text("another recipe, or --set launch.hardware", "换用其他配方，或 --set launch.hardware"),
        )


@check("npu.memory", "the chips have 64 GB", "芯片显存为 64 GB", level="warn", after=("npu.smi",), problem="D1")
def memory(case: Case) -> Iterator[Fault]:
    least = min(row.number("hbm_total_mb") for row in chips(case.facts))
    if least < HBM_MB:
        yield Fault(
            "64 GiB",
            size(least * (1 << 20)),
            Text("invoke lint: its memory rules assume 64 GiB", "invoke lint：内存规则按 64 GiB 计算"),
        )


@check("npu.idle", "nobody else works on the chips", "芯片上没有其他进程", after=("npu.smi",), problem="C2")
def idle(case: Case) -> Iterator[Fault]:
    found: dict[str, list[str]] = {}
    for row in case.facts.rows("npu/smi/processes"):
        found.setdefault(f"{row.number('pid'):g} {row.text('name')}", []).append(f"{row.number('npu'):g}")
    for process, numbers in list(found.items())[:4]:
        yield Fault(
            NONE,
            Text(f"process {process} on NPU {', '.join(numbers)}", f"NPU {', '.join(numbers)} 上的进程 {process}"),
            f"kill {process.split()[0]}",
        )


@check(
    "npu.memory-free",
    "the chips' memory is free",
    "芯片显存空闲",
    level="warn",
    after=("npu.smi", "npu.idle"),
    problem="D7",
)
def memory_free(case: Case) -> Iterator[Fault]:
    """Memory that is taken and by no process to be seen is another container's."""
    taken = [row for row in chips(case.facts) if row.number("hbm_used_mb") > IDLE_MB]
    if taken:
        worst = max(row.number("hbm_used_mb") for row in taken)
        numbers = ", ".join(f"{row.number('npu'):g}" for row in taken)
        yield Fault(f"< {IDLE_MB} MB", f"{worst:g} MB (NPU {numbers})", "docker ps; npu-smi info -t usages -i N")


@check("npu.temperature", "the chips are not hot", "芯片温度正常", level="warn", after=("npu.smi",))
def temperature(case: Case) -> Iterator[Fault]:
    for row in chips(case.facts):
        if row.has("temperature") and row.number("temperature") >= HOT:
            found = f"NPU {row.number('npu'):g}: {row.number('temperature'):g} °C"
            yield Fault(
                f"< {HOT} °C",
                found,
                Text("look at the fans; hot chips slow the others down", "检查风扇；过热芯片会拖慢整体"),
            )


@check(
    "npu.visible",
    "ASCEND_RT_VISIBLE_DEVICES names chips that exist",
    "ASCEND_RT_VISIBLE_DEVICES 中的芯片存在",
    problem="B5",
    after=("npu.driver",),
)
def visible(case: Case) -> Iterator[Fault]:
    value = case.facts.env("ASCEND_RT_VISIBLE_DEVICES")
    if value is None:
        return
    numbers = [part.strip() for part in value.split(",") if part.strip()]
    wrong = [one for one in numbers if not one.isdigit() or int(one) >= count_nodes(case.facts)]
    if wrong or not numbers:
        last = count_nodes(case.facts) - 1
        yield Fault(f"0 … {last}", repr(value), "unset ASCEND_RT_VISIBLE_DEVICES")
