"""The network: each NPU's own port, the host's interfaces, the names and ports that the stack takes."""

import ipaddress
from collections.abc import Iterator

from checks.doctor.check import ALL, Case, Fault, Skip, check
from checks.doctor.document import Facts, Missing
from checks.doctor.npu import NONE, count_nodes
from checks.words import Text

SOCKETS = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
HCCL_PORT, RAY_PORT = 60000, 6379
PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def _asked(case: Case, name: str) -> dict[str, Facts]:
    """The ports of which something is known, by NPU. Missing where of none; the reason is the first port's."""
    rows = case.facts.table("npu/ports")
    known = {number: row for number, row in rows.items() if row.has(name)}
    if not known:
        raise Missing(next((row.why(name) for row in rows.values()), "npu/ports: empty"))
    return known


def _several(case: Case) -> None:
    if case.nodes < 2:
        raise Skip(Text("one node", "单节点"))


@check("network.npu-ports", "the NPUs' own ports can be asked", "可查询 NPU 网口", after=("npu.driver",))
def npu_ports(case: Case) -> Iterator[Fault]:
    """By hccn_tool, which comes with the driver, or from /etc/hccn.conf."""
    _several(case)
    if not case.facts.table("npu/ports"):
        yield Fault(
            Text("hccn_tool, /etc/hccn.conf", "hccn_tool、/etc/hccn.conf"),
            NONE,
            "docker run -v /etc/hccn.conf:/etc/hccn.conf:ro …",
        )


@check(
    "network.link", "every NPU's port has a link", "每个 NPU 网口链路正常", problem="C20", after=("network.npu-ports",)
)
def link(case: Case) -> Iterator[Fault]:
    down = [number for number, row in _asked(case, "link").items() if row.text("link") != "UP"]
    if down:
        yield Fault(
            "UP", f"DOWN: NPU {', '.join(down)}", f"hccn_tool -i {down[0]} -link -g; hccn_tool -i {down[0]} -optical -g"
        )


@check(
    "network.address",
    "every NPU's port has an address",
    "每个 NPU 网口有地址",
    problem="C3",
    after=("network.npu-ports",),
)
def address(case: Case) -> Iterator[Fault]:
    known = {number: row.text("address") for number, row in _asked(case, "address").items()}
    bare = [str(number) for number in range(count_nodes(case.facts)) if str(number) not in known]
    if bare:
        yield Fault(
            Text("an address", "一个地址"),
            f"{Text('none', '无').en}: NPU {', '.join(bare)}",
            f"hccn_tool -i {bare[0]} -ip -s address … netmask …",
        )


@check(
    "network.address-once",
    "no two NPUs have one address",
    "NPU 网口地址不重复",
    problem="C3",
    after=("network.npu-ports",),
)
def address_once(case: Case) -> Iterator[Fault]:
    by: dict[str, list[str]] = {}
    for number, row in _asked(case, "address").items():
        by.setdefault(row.text("address"), []).append(number)
    for one, numbers in by.items():
        if len(numbers) > 1:
            yield Fault(
                Text("one each", "各不相同"),
                f"{one}: NPU {', '.join(numbers)}",
                f"hccn_tool -i {numbers[1]} -ip -s address … netmask …",
            )


@check(
    "network.health",
    "every NPU's port reaches its gateway",
    "每个 NPU 网口网络健康",
    level="warn",
    problem="C3",
    after=("network.npu-ports",),
)
def health(case: Case) -> Iterator[Fault]:
    for number, row in _asked(case, "net_health").items():
        if row.text("net_health").lower() not in ("success", "init"):
            yield Fault(
                "Success",
                f"NPU {number}: {row.text('net_health')}",
                f"hccn_tool -i {number} -net_health -g; hccn_tool -i {number} -gateway -g",
            )


@check(
    "network.tls",
    "TLS is on for all of the node's ports or for none",
    "本节点各网口 TLS 设置一致",
    problem="C3",
    after=("network.npu-ports",),
)
def tls(case: Case) -> Iterator[Fault]:
    """HCCL's handshake fails between ports that differ: "Getting socket times out"."""
    states = {number: row.flag("tls") for number, row in _asked(case, "tls").items()}
    on = [number for number, state in states.items() if state]
    if on and len(on) < len(states):
        yield Fault(
            Text("all the same", "全部一致"),
            f"on: NPU {', '.join(on)}",
            "for i in {0..7}; do hccn_tool -i $i -tls -s enable 0; done",
        )


@check(
    "network.interfaces",
    "the interfaces that variables name are there and up",
    "环境变量指定的网卡存在且已启用",
    problem="C5",
)
def interfaces(case: Case) -> Iterator[Fault]:
    rows = {row.text("name"): row for row in case.facts.rows("network/interfaces")}
    for variable in SOCKETS:
        value = case.facts.env(variable)
        if (
            value
            and not value.startswith("^")
            and not any(_matches(value, name) and _usable(row) for name, row in rows.items())
        ):
            found = ", ".join(sorted(name for name, row in rows.items() if _usable(row) and name != "lo"))
            yield Fault(f"{variable}={value}", found or NONE, f"export {variable}={_best(case, rows)}")


def _matches(value: str, name: str) -> bool:
    """`eth` takes every interface that begins so, `=eth0` the one; several between commas."""
    return any(name == one[1:] if one.startswith("=") else name.startswith(one) for one in value.split(",") if one)


def _usable(row: Facts) -> bool:
    return row.flag("up") and bool(row.texts("addresses"))


def _best(case: Case, rows: dict[str, Facts]) -> str:
    default = case.facts.text("network/default_interface") if case.facts.has("network/default_interface") else None
    return default if default in rows else "…"


@check(
    "network.interfaces-named", "variables say which interface to take", "已指定使用的网卡", level="warn", problem="C5"
)
def interfaces_named(case: Case) -> Iterator[Fault]:
    """With several, HCCL, gloo and tensor pipes each take one by rules of their own."""
    _several(case)
    rows = {row.text("name"): row for row in case.facts.rows("network/interfaces")}
    usable = [
        name for name, row in rows.items() if _usable(row) and not name.startswith(("lo", "docker", "veth", "br-"))
    ]
    for variable in SOCKETS[:2]:
        if len(usable) > 1 and not case.facts.env(variable):
            yield Fault(variable, NONE, f"export {variable}={_best(case, rows)}")


@check("network.own-address", "HCCL_IF_IP is this host's", "HCCL_IF_IP 是本机地址", problem="C5")
def own_address(case: Case) -> Iterator[Fault]:
    value = case.facts.env("HCCL_IF_IP")
    own = [address for row in case.facts.rows("network/interfaces") for address in row.texts("addresses")]
    if value and value not in own:
        yield Fault(
            Text("an address of this host", "本机地址"), value, f"export HCCL_IF_IP={next(iter(_outside(own)), '…')}"
        )


def _outside(addresses: list[str]) -> list[str]:
    return [one for one in addresses if "." in one and not one.startswith("127.")]


@check(
    "network.hostname", "the host's name leads to an address that others reach", "主机名解析到可达地址", problem="C5"
)
def hostname(case: Case) -> Iterator[Fault]:
    """Ray and HCCL take the name's address; Debian's 127.0.1.1 line sends other nodes to themselves."""
    _several(case)
    found = case.facts.texts("network/hostname_addresses")
    if not _outside(found):
        name = case.facts.text("system/hostname")
        yield Fault(
            Text(f"{name}: its address", f"{name}：本机地址"),
            ", ".join(found) or NONE,
            Text(f"correct {name} in /etc/hosts", f"修改 /etc/hosts 中的 {name}"),
        )


@check(
    "network.proxy",
    "a proxy leaves local addresses alone",
    "代理不影响本地地址",
    level="warn",
    matrices=ALL,
    after=(),
)
def proxy(case: Case) -> Iterator[Fault]:
    """Ray's dashboard and verl's rollout servers are asked over HTTP by the host's address."""
    named = [name for name in PROXIES if case.facts.env(name)]
    spared = case.facts.env("no_proxy") or case.facts.env("NO_PROXY") or ""
    own = _outside([address for row in case.facts.rows("network/interfaces") for address in row.texts("addresses")])
    wanted = ["localhost", *own[:1]]
    missing = [one for one in wanted if not _spares(spared, one)]
    if named and missing:
        yield Fault(
            f"no_proxy: {', '.join(wanted)}",
            f"{named[0]}, no_proxy={spared!r}",
            f"export no_proxy={','.join([spared, *missing]).strip(',')}",
        )


def _spares(spared: str, host: str) -> bool:
    """Whether a no_proxy list names a host, alone, by its network or by the end of its name."""
    for one in (part.strip() for part in spared.split(",")):
        try:
            if one == "*" or one == host or ipaddress.ip_address(host) in ipaddress.ip_network(one, strict=False):
                return True
        except ValueError:
            if one and host.endswith(one.lstrip("*")):
                return True
    return False


@check("network.ports-hccl", "HCCL's ports on the host are free", "HCCL 主机端口空闲", problem="C1")
def ports_hccl(case: Case) -> Iterator[Fault]:
    held = [port for port in case.facts.numbers("network/held_ports") if port >= HCCL_PORT]
    if held and not case.facts.env("HCCL_HOST_SOCKET_PORT_RANGE") and not case.facts.env("HCCL_IF_BASE_PORT"):
        found = ", ".join(f"{port:g}" for port in held)
        yield Fault(
            Text(f"{HCCL_PORT} and up free", f"{HCCL_PORT} 起空闲"),
            found,
            f"ss -ltnp sport = :{held[0]:g}; export HCCL_HOST_SOCKET_PORT_RANGE=61000-61050",
        )


@check(
    "network.ports-reserved",
    "outgoing connections leave HCCL's ports alone",
    "临时端口不占用 HCCL 端口",
    level="warn",
    problem="C1",
)
def ports_reserved(case: Case) -> Iterator[Fault]:
    """Linux takes 32768 to 60999 for outgoing connections, HCCL 16 ports from 60000 on (CANN 8, HCCL_IF_BASE_PORT)."""
    if case.facts.env("HCCL_HOST_SOCKET_PORT_RANGE") == "auto":
        raise Skip(Text("HCCL takes any port", "HCCL 使用任意端口"))
    first, last = [*case.facts.numbers("network/local_ports"), 0, 0][:2]
    chosen = case.facts.env("HCCL_IF_BASE_PORT") or ""
    base = int(chosen) if chosen.isdecimal() and len(chosen) < 6 else HCCL_PORT
    if first <= base <= last and not _reserves(case.facts.text("network/reserved_ports"), base):
        yield Fault(
            Text(f"{base} to {base + 15} reserved", f"保留 {base}-{base + 15}"),
            f"{first:g}-{last:g}",
            f"sysctl -w net.ipv4.ip_local_reserved_ports={base}-{base + 15}",
        )


def _reserves(listed: str, port: int) -> bool:
    for one in listed.split(","):
        first, _, last = one.strip().partition("-")
        if first.isdigit() and int(first) <= port <= int(last if last.isdigit() else first):
            return True
    return False
