"""The host's network: interfaces, what the host name leads to, ports that the stack uses."""

from __future__ import annotations

import re
import socket
from functools import partial

from checks.facts.reading import at, side_by_side, text_of

try:
    import psutil
except ImportError:  # a host without it: interfaces are unknown, the rest is not
    psutil = None

# Ports that others may hold: Ray's head, and HCCL's on the host, 60000 and up for 16 devices.
PORTS = (6379, *range(60000, 60016))


def network(seconds: float) -> dict:
    reads = {
        "interfaces": _interfaces,
        "default_interface": _default_interface,
        "hostname_addresses": _hostname_addresses,  # may wait for a name server
        "held_ports": _held_ports,
        "local_ports": partial(_numbers, "/proc/sys/net/ipv4/ip_local_port_range"),
        "reserved_ports": partial(_line, "/proc/sys/net/ipv4/ip_local_reserved_ports"),
    }
    return side_by_side(reads, seconds)


def _interfaces() -> list[dict]:
    if psutil is None:
        raise RuntimeError("psutil is not installed")
    about = psutil.net_if_stats()
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        own = [one.address.partition("%")[0] for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6)]
        state = about.get(name)
        found.append(
            {
                "name": name,
                "addresses": own,
                "up": bool(state and state.isup),
                "speed": state.speed if state else None,
                "mtu": state.mtu if state else None,
            }
        )
    return found


def _default_interface() -> str | None:
    """The interface of the default route."""
    for line in text_of(at("/proc/net/route")).splitlines()[1:]:
        fields = line.split()
        if len(fields) > 2 and fields[1] == "00000000":
            return fields[0]
    return None


def _hostname_addresses() -> list[str]:
    """What the host's own name leads to."""
    return sorted({found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)})


def _held_ports() -> list[int]:
    """Those of the stack's ports that cannot be bound."""
    return [port for port in PORTS if not _is_free(port)]


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text_of(at(path)))]


def _line(path: str) -> str:
    return text_of(at(path)).strip()
