"""CANN and NNAL: installed, of the matrix's version, one of them, in this shell's environment, and loadable."""

from collections.abc import Iterator

from checks.doctor import versions
from checks.doctor.check import Case, Fault, Skip, check
from checks.doctor.document import Missing
from checks.doctor.npu import NONE, generation
from checks.words import Text

SET_TOOLKIT = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
SET_NNAL = "source /usr/local/Ascend/nnal/atb/set_env.sh"
KERNELS = {"A2": "ascend910b", "A3": "ascend910_93"}


def _toolkits(case: Case):
    return case.facts.rows("cann/toolkits")


def _version(case: Case) -> str:
    """Of the toolkit that counts: the sourced one, else the one that `latest` leads to, else the only one."""
    if case.facts.has("cann/sourced/version"):
        return case.facts.text("cann/sourced/version")
    rows = [row for row in _toolkits(case) if row.flag("latest")] or _toolkits(case)
    if len(rows) != 1:
        raise Missing(f"cann/toolkits: {len(rows)} toolkits, and none is sourced")
    return rows[0].text("version")


@check("cann.installed", "CANN is installed", "CANN 已安装", problem="B4")
def installed(case: Case) -> Iterator[Fault]:
    if not _toolkits(case) and case.facts.absent("cann/sourced/version"):
        wanted = case.component("cann").version
        yield Fault(
            f"CANN {wanted}",
            NONE,
            f"./Ascend-cann-toolkit_{wanted}_linux-{case.facts.text('system/machine')}.run --install",
        )


@check("cann.version", "CANN is no older than the matrix's", "CANN 版本不低于矩阵", after=("cann.installed",))
def version(case: Case) -> Iterator[Fault]:
    wanted, found = case.component("cann").version, _version(case)
    if versions.older(found, wanted):
        yield Fault(
            wanted,
            found,
            Text(f"install CANN {wanted} (toolkit, kernels, nnal)", f"安装 CANN {wanted}（toolkit、kernels、nnal）"),
        )


@check(
    "cann.known", "CANN is the one that the matrix names", "CANN 版本正是矩阵所列", level="warn",
    after=("cann.version",),
)  # fmt: skip
def known(case: Case) -> Iterator[Fault]:
    wanted, found = case.component("cann").version, _version(case)
    if versions.older(wanted, found):
        yield Fault(
            wanted,
            found,
            Text(
                "watch for drift: torch_npu 2.7.1 is paired with CANN 8.3.RC1",
                "注意：torch_npu 2.7.1 配套 CANN 8.3.RC1",
            ),
        )


@check(
    "cann.sourced",
    "this shell has CANN's environment",
    "当前 shell 已加载 CANN 环境",
    after=("cann.installed",),
    problem="B4",
)
def sourced(case: Case) -> Iterator[Fault]:
    if case.facts.absent("cann/sourced/version"):
        home = case.facts.env("ASCEND_HOME_PATH")
        found = NONE if home is None else Text(f"{home}, which holds no toolkit", f"{home}（无 toolkit）")
        yield Fault("ASCEND_HOME_PATH", found, SET_TOOLKIT)


@check(
    "cann.latest",
    "the toolkit of this shell is the installed default",
    "加载的 toolkit 为默认版本",
    after=("cann.sourced",),
)
def latest(case: Case) -> Iterator[Fault]:
    default = [row.text("version") for row in _toolkits(case) if row.flag("latest")]
    found = case.facts.text("cann/sourced/version")
    if default and found not in default:
        yield Fault(default[0], found, f"exec bash -l; {SET_TOOLKIT}")


@check("cann.mixed", "LD_LIBRARY_PATH names one CANN", "LD_LIBRARY_PATH 只含一个 CANN", problem="A1")
def mixed(case: Case) -> Iterator[Fault]:
    found = case.facts.texts("cann/library_versions")
    if len(found) > 1:
        yield Fault(
            Text("one version", "一个版本"), ", ".join(found), f"unset LD_LIBRARY_PATH; {SET_TOOLKIT}; {SET_NNAL}"
        )


@check("cann.machine", "CANN is for this processor", "CANN 与处理器架构一致", after=("cann.sourced",))
def machine(case: Case) -> Iterator[Fault]:
    wanted, found = case.facts.text("system/machine"), case.facts.text("cann/sourced/machine")
    if found != wanted:
        yield Fault(wanted, found, Text(f"install the toolkit for {wanted}", f"安装 {wanted} 版 toolkit"))


@check(
    "cann.kernels",
    "binary operators for these chips are installed",
    "已安装本芯片的算子包",
    after=("cann.installed",),
)
def kernels(case: Case) -> Iterator[Fault]:
    wanted = KERNELS[generation(case.facts)]
    found = [] if case.facts.absent("cann/kernels") else case.facts.texts("cann/kernels")
    if wanted not in found:
        package = {"ascend910b": "910b", "ascend910_93": "A3"}[wanted]
        yield Fault(
            wanted, ", ".join(found) or NONE, f"./Ascend-cann-kernels-{package}_{_version(case)}_linux-….run --install"
        )


@check(
    "cann.kernels-version",
    "operators and toolkit are of one version",
    "算子包与 toolkit 同版本",
    after=("cann.version", "cann.latest"),
)
def kernels_version(case: Case) -> Iterator[Fault]:
    running = case.facts.table("cann/sourced/running")
    if "toolkit" not in running or "opp_kernel" not in running:
        raise Skip(Text("version.cfg does not name both", "version.cfg 未同时列出两者"))
    wanted, found = str(running["toolkit"].value), str(running["opp_kernel"].value)
    if not versions.same(wanted, found):
        yield Fault(wanted, found, f"./Ascend-cann-kernels-…_{wanted}_linux-….run --install")


@check("cann.nnal", "NNAL is installed", "NNAL 已安装", problem="A1")
def nnal(case: Case) -> Iterator[Fault]:
    if case.facts.absent("cann/nnal/version"):
        wanted = case.component("cann").version
        yield Fault(f"NNAL {wanted}", NONE, f"./Ascend-cann-nnal_{wanted}_linux-….run --install")


@check(
    "cann.nnal-version",
    "NNAL and CANN are of one release",
    "NNAL 与 CANN 同版本",
    problem="A1",
    after=("cann.nnal", "cann.version", "cann.latest"),
)
def nnal_version(case: Case) -> Iterator[Fault]:
    wanted, found = _version(case), case.facts.text("cann/nnal/version")
    if versions.numbers(wanted, 3) != versions.numbers(found, 3):
        yield Fault(wanted, found, f"./Ascend-cann-nnal_{wanted}_linux-….run --install")


@check(
    "cann.nnal-sourced",
    "this shell has NNAL's environment",
    "当前 shell 已加载 NNAL 环境",
    after=("cann.nnal",),
    problem="A1",
)
def nnal_sourced(case: Case) -> Iterator[Fault]:
    if not case.facts.env("ATB_HOME_PATH"):
        yield Fault("ATB_HOME_PATH", NONE, SET_NNAL)


@check(
    "cann.nnal-abi",
    "NNAL is built for torch's C++ ABI",
    "NNAL 的 C++ ABI 与 torch 一致",
    after=("cann.nnal-sourced",),
    problem="A1",
)
def nnal_abi(case: Case) -> Iterator[Fault]:
    home = (case.facts.env("ATB_HOME_PATH") or "").rstrip("/")
    wanted = f"cxx_abi_{case.facts.number('stack/torch_cxx11_abi'):g}"
    if "cxx_abi_" in home and not home.endswith(wanted):
        yield Fault(wanted, home, f"{SET_NNAL} --cxx_abi={wanted[-1]}")


def _loads(case: Case, library: str, remedy: str) -> Iterator[Fault]:
    if not case.facts.flag(f"cann/libraries/{library}/loads"):
        yield Fault(
            Text(f"{library} loads", f"{library} 可加载"), case.facts.text(f"cann/libraries/{library}/reason"), remedy
        )


@check("cann.library-driver", "the driver's library loads", "驱动库可加载", after=("npu.driver",), problem="B1")
def library_driver(case: Case) -> Iterator[Fault]:
    folder = "/usr/local/Ascend/driver/lib64"
    yield from _loads(
        case, "libascend_hal.so", f"export LD_LIBRARY_PATH={folder}:{folder}/common:{folder}/driver:$LD_LIBRARY_PATH"
    )


@check(
    "cann.library-runtime",
    "CANN's runtime loads",
    "CANN 运行时可加载",
    after=("cann.sourced", "cann.library-driver"),
    problem="B4",
)
def library_runtime(case: Case) -> Iterator[Fault]:
    yield from _loads(case, "libascendcl.so", SET_TOOLKIT)


@check("cann.library-hccl", "HCCL loads", "HCCL 可加载", after=("cann.sourced", "cann.library-driver"), problem="B4")
def library_hccl(case: Case) -> Iterator[Fault]:
    yield from _loads(case, "libhccl.so", SET_TOOLKIT)


@check(
    "cann.library-atb",
    "ATB loads",
    "ATB 可加载",
    problem="A1",
    after=("cann.nnal-sourced", "cann.library-runtime", "cann.version", "cann.mixed"),
)
def library_atb(case: Case) -> Iterator[Fault]:
    yield from _loads(case, "libatb.so", SET_NNAL)
