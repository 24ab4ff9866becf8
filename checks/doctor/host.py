"""The host: system, processors, memory, disks, limits."""

from collections.abc import Iterator

from checks.doctor import versions
from checks.doctor.check import ALL, Case, Fault, check
from checks.doctor.document import Missing
from checks.words import Text

GIB = 1 << 30
OPEN_FILES = 32768  # verl's and MindSpeed-RL's scripts; Ray opens two files a processor and worker
PROCESSES = 65536
SHARED_LEAST, SHARED = 1 * GIB, 16 * GIB  # Docker's default is 64 MiB; verl's own CI runs with 16 GiB and more
TEMPORARY, HOME = 20 * GIB, 10 * GIB
FULL = 0.95  # Ray stops making objects above it (RAY_local_fs_capacity_threshold)
GLIBC = "2.28"  # of torch's and torch_npu's wheels, manylinux_2_28
KERNEL = "5.10"


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (1 << 20, "MiB")):
        if abs(count) >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B"


@check(
    "host.machine", "the processor is one that wheels are made for", "处理器架构有对应的 wheel", matrices=ALL, after=()
)
def machine(case: Case) -> Iterator[Fault]:
    found = case.facts.text("system/machine")
    if found not in ("aarch64", "x86_64"):
        yield Fault("aarch64 or x86_64", found, Text("use another machine", "更换机器"))


@check("host.libc", f"glibc is at least {GLIBC}", f"glibc 不低于 {GLIBC}", matrices=ALL, after=())
def libc(case: Case) -> Iterator[Fault]:
    found = case.facts.text("system/libc")
    if not found.startswith("glibc ") or versions.older(found.partition(" ")[2], GLIBC):
        yield Fault(f"glibc {GLIBC}", found, Text("use the image, or a newer distribution", "使用镜像或更新的发行版"))


@check("host.python", "Python is the matrix's", "Python 版本与矩阵一致", matrices=ALL, after=())
def python(case: Case) -> Iterator[Fault]:
    wanted, found = case.component("python").version, case.facts.text("python/version")
    if versions.numbers(found, 2) != versions.numbers(wanted, 2):
        yield Fault(wanted, found, f"python{wanted} -m venv …")


@check("host.kernel", f"the kernel is at least {KERNEL}", f"内核不低于 {KERNEL}", level="warn", problem="I4")
def kernel(case: Case) -> Iterator[Fault]:
    found = case.facts.text("system/kernel")
    if versions.older(".".join(map(str, versions.numbers(found, 2))), KERNEL):
        yield Fault(KERNEL, found, Text("update the host's kernel", "升级主机内核"))


@check("host.governor", "processors run at full speed", "CPU 处于性能模式", level="warn", problem="I4")
def governor(case: Case) -> Iterator[Fault]:
    slow = {name: count.value for name, count in case.facts.table("cpu/governors").items() if name != "performance"}
    if slow:
        found = ", ".join(f"{name} × {count}" for name, count in sorted(slow.items()))
        yield Fault("performance", found, "cpupower -c all frequency-set -g performance")


@check("host.huge-pages", "transparent huge pages are not off", "透明大页未关闭", level="warn", problem="I4")
def huge_pages(case: Case) -> Iterator[Fault]:
    found = case.facts.text("memory/huge_pages")
    if found == "never":
        yield Fault("always, madvise", found, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")


@check("host.cores", "no quota holds back the processors", "CPU 未被配额限制", level="warn", problem="I4")
def cores(case: Case) -> Iterator[Fault]:
    if case.facts.at("cpu/quota").value is None:
        return
    quota, usable = case.facts.number("cpu/quota"), case.facts.number("cpu/usable")
    if quota < usable:
        yield Fault(
            Text(f"{usable:g} cores", f"{usable:g} 核"),
            Text(f"a quota of {quota:g}", f"配额 {quota:g}"),
            Text("docker run without --cpus", "docker run 时去掉 --cpus"),
        )


@check("host.affinity", "the process may use all processors", "进程可使用全部 CPU", level="warn", problem="I4")
def affinity(case: Case) -> Iterator[Fault]:
    usable, logical = case.facts.number("cpu/usable"), case.facts.number("cpu/logical")
    if usable < logical:
        yield Fault(
            f"{logical:g}",
            f"{usable:g}",
            Text("start without taskset or --cpuset-cpus", "不要使用 taskset 或 --cpuset-cpus"),
        )


@check(
    "host.memory-limit",
    "the container may use the host's memory",
    "容器可使用主机全部内存",
    level="warn",
    problem="C10",
)
def memory_limit(case: Case) -> Iterator[Fault]:
    if case.facts.at("memory/limit").value is None:
        return
    limit, total = case.facts.number("memory/limit"), case.facts.number("memory/total")
    if limit < total:
        yield Fault(size(total), size(limit), Text("docker run without --memory", "docker run 时去掉 --memory"))


@check("host.memory-free", "memory is not taken already", "内存未被占用", level="warn", problem="C10")
def memory_free(case: Case) -> Iterator[Fault]:
    free, total = case.facts.number("memory/available"), case.facts.number("memory/total")
    if free < total / 2:
        yield Fault(
            Text(f"at least half of {size(total)}", f"不少于 {size(total)} 的一半"),
            size(free),
            "ps aux --sort -rss | head",
        )


@check("host.shared-memory", "/dev/shm holds more than Docker's default", "/dev/shm 大于 Docker 默认值", problem="D8")
def shared_memory(case: Case) -> Iterator[Fault]:
    found = case.facts.number("memory/shared/total")
    if found < SHARED_LEAST:
        yield Fault(size(SHARED), size(found), "docker run --ipc=host …, --shm-size=64g")


@check(
    "host.shared-memory-ray", "/dev/shm holds Ray's objects", "/dev/shm 能容纳 Ray 对象", level="warn", problem="D8",
    after=("npu.present", "host.shared-memory"),
)  # fmt: skip
def shared_memory_ray(case: Case) -> Iterator[Fault]:
    found = case.facts.number("memory/shared/free")
    if found < SHARED:
        yield Fault(
            Text(f"{size(SHARED)} free", f"空闲 {size(SHARED)}"), size(found), "docker run --ipc=host …, rm /dev/shm/…"
        )


@check("host.open-files", "Ray may open enough files", "可打开文件数足够 Ray 使用", problem="C9")
def open_files(case: Case) -> Iterator[Fault]:
    soft, hard = _limit(case, "open_files")
    if soft < OPEN_FILES:
        yield Fault(str(OPEN_FILES), f"{soft:g}", _raise("-n", OPEN_FILES, hard, "nofile"))


@check("host.processes", "enough processes may be started", "可启动进程数足够")
def processes(case: Case) -> Iterator[Fault]:
    soft, hard = _limit(case, "processes")
    if soft < PROCESSES:
        yield Fault(str(PROCESSES), f"{soft:g}", _raise("-u", PROCESSES, hard, "nproc"))


def _limit(case: Case, name: str) -> tuple[float, float]:
    pair = [float("inf") if one < 0 else one for one in case.facts.numbers(f"limits/{name}")]
    if len(pair) != 2:
        raise Missing(f"limits/{name}: expected [soft, hard], found {pair}")
    return pair[0], pair[1]


def _raise(option: str, count: int, hard: float, name: str) -> str:
    return f"ulimit {option} {count}" if hard >= count else f"docker run --ulimit {name}={2 * count} …"


@check("host.temporary-space", "the temporary folder has room", "临时目录空间充足", problem="D10", level="warn")
def temporary_space(case: Case) -> Iterator[Fault]:
    yield from _space(case, "temporary", TEMPORARY, "export TMPDIR=…")


@check("host.home-space", "the home folder has room for caches", "主目录有缓存空间", level="warn", problem="D10")
def home_space(case: Case) -> Iterator[Fault]:
    yield from _space(case, "home", HOME, "du -sh ~/.cache/*")


def _space(case: Case, name: str, wanted: float, remedy: str) -> Iterator[Fault]:
    free = case.facts.number(f"disk/{name}/free")
    if free < wanted:
        path = case.facts.text(f"disk/{name}/path")
        yield Fault(Text(f"{size(wanted)} free in {path}", f"{path} 空闲 {size(wanted)}"), size(free), remedy)


@check(
    "host.disk-full",
    "Ray can make objects: no disk is full",
    "磁盘未满，Ray 可创建对象",
    matrices=ALL,
    after=(),
    problem="D10",
)
def disk_full(case: Case) -> Iterator[Fault]:
    free, total = case.facts.number("disk/temporary/free"), case.facts.number("disk/temporary/total")
    if total > 0 and 1 - free / total > FULL:
        path = case.facts.text("disk/temporary/path")
        yield Fault(
            f"< {FULL:.0%}", f"{1 - free / total:.1%} ({path})", Text(f"free some space in {path}", f"清理 {path}")
        )


@check("host.writable", "temporary and home folder can be written", "临时目录与主目录可写", matrices=ALL, after=())
def writable(case: Case) -> Iterator[Fault]:
    for name in ("temporary", "home"):
        path = case.facts.text(f"disk/{name}/path")
        if not case.facts.flag(f"disk/{name}/writable"):
            yield Fault(Text(f"{path} writable", f"{path} 可写"), Text("read-only", "只读"), f"chmod u+rwx {path}")


@check("host.compilers", "operators can be compiled at their first use", "首次使用时可编译算子")
def compilers(case: Case) -> Iterator[Fault]:
    """MindSpeed 35da6ac builds its operators by torch's cpp_extension, which asks for g++ and ninja."""
    for name, package in (("g++", "g++"), ("ninja", "ninja-build")):
        if case.facts.absent(f"tools/{name}"):
            yield Fault(name, Text("none", "未找到"), f"apt-get install {package}")
