"""Ray: what is left of earlier sessions, where a run would connect to, the length of its sockets' paths."""

from collections.abc import Iterator

from checks.doctor.check import ALL, Case, Fault, check
from checks.doctor.network import RAY_PORT
from checks.doctor.npu import NONE
from checks.words import Text

SOCKET = 107  # bytes of a socket's path
# What Ray puts behind its temporary folder: /ray/session_2025-10-13_10-11-12_123456_1234567/sockets/plasma_store
SESSION = 76


@check(
    "ray.leftovers",
    "no Ray of an earlier run is left",
    "没有遗留的 Ray 进程",
    level="warn",
    after=("npu.present",),
    problem="C16",
)
def leftovers(case: Case) -> Iterator[Fault]:
    daemons = case.facts.rows("ray/daemons")
    if daemons and not case.facts.env("RAY_ADDRESS"):
        shown = ", ".join(f"{row.text('name')} {row.number('pid'):g}" for row in daemons[:4])
        numbers = " ".join(f"{row.number('pid'):g}" for row in daemons)
        yield Fault(NONE, shown, f"kill {numbers}")


@check(
    "ray.address",
    "RAY_ADDRESS does not lead elsewhere",
    "RAY_ADDRESS 未指向其他集群",
    level="warn",
    matrices=ALL,
    after=(),
    problem="C15",
)
def address(case: Case) -> Iterator[Fault]:
    value = case.facts.env("RAY_ADDRESS")
    if value and value not in ("auto", "local") and not case.facts.rows("ray/daemons"):
        yield Fault(Text("a Ray that runs here", "本机运行的 Ray"), value, "unset RAY_ADDRESS")


@check("ray.port", "the head's port is free, or Ray's", "head 端口空闲或由 Ray 占用", problem="C16")
def port(case: Case) -> Iterator[Fault]:
    held = RAY_PORT in case.facts.numbers("network/held_ports")
    if held and not any(row.text("name") == "gcs_server" for row in case.facts.rows("ray/daemons")):
        yield Fault(
            Text(f"{RAY_PORT} free", f"{RAY_PORT} 空闲"),
            Text("held by another program", "被其他程序占用"),
            f"ss -ltnp sport = :{RAY_PORT}",
        )


@check(
    "ray.socket-path",
    "the temporary folder's path is short enough for sockets",
    "临时目录路径足够短",
    matrices=ALL,
    after=(),
    problem="C17",
)
def socket_path(case: Case) -> Iterator[Fault]:
    path = case.facts.env("RAY_TMPDIR") or case.facts.text("disk/temporary/path")
    if len(path.encode()) + SESSION > SOCKET:
        yield Fault(
            Text(f"at most {SOCKET - SESSION} bytes", f"不超过 {SOCKET - SESSION} 字节"),
            f"{len(path.encode())}: {path}",
            "export TMPDIR=/tmp",
        )


@check(
    "ray.environment",
    "Ray's processes inherit this environment",
    "Ray 进程继承了当前环境",
    after=("cann.sourced",),
    problem="C7",
)
def environment(case: Case) -> Iterator[Fault]:
    """A raylet from before set_env.sh registers no NPU: its workers have its environment, not the driver's."""
    for row in case.facts.rows("ray/daemons"):
        if row.text("name") == "raylet" and row.has("sourced") and not row.flag("sourced"):
            found = f"raylet {row.number('pid'):g}"
            yield Fault(
                "ASCEND_HOME_PATH",
                Text(f"{found} without it", f"{found} 中没有"),
                f"kill {row.number('pid'):g}; source …/set_env.sh; ray start …",
            )
