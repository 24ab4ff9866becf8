"""The container that this runs in, if it does, and what of the host has been given to it."""

from __future__ import annotations

import re
import shutil
from functools import partial

from checks.facts.reading import at, guarded, output, side_by_side, text_of, unknown

CAPABILITIES = {"DAC_OVERRIDE": 1, "IPC_LOCK": 14, "SYS_ADMIN": 21, "SYS_NICE": 23, "SYS_RESOURCE": 24}
# What a container needs of the host's driver.
GIVEN = {
    "driver_libraries": "/usr/local/Ascend/driver/lib64",
    "driver_version": "/usr/local/Ascend/driver/version.info",
    "dcmi": "/usr/local/dcmi",
    "install_info": "/etc/ascend_install.info",
    "hccn_conf": "/etc/hccn.conf",
}
MOUNT = re.compile(r"^\d+ \d+ \S+ \S+ (\S+) \S+ .*?- (\S+) (\S+)", re.MULTILINE)
PLACES = re.compile(r"/usr/local/(Ascend|dcmi|bin|sbin)|/etc/(ascend|hccn)|/dev/(shm|davinci)|^/(data|home|mnt|root)?$")


def container(seconds: float) -> dict:
    return {
        "kind": guarded(_kind),
        "mounts": guarded(_mounts),
        "given": guarded(_given),
        "capabilities": guarded(_capabilities),
        **side_by_side({"docker": partial(_docker, seconds)}, seconds),
    }


def _kind() -> str | None:
    """`docker`, `podman`, `kubernetes`, `container`; None on a host."""
    if at("/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if at("/run/.containerenv").exists():
        return "podman"
    if at("/.dockerenv").exists():
        return "docker"
    return "container" if re.search(r"docker|kubepods|containerd|lxc", text_of(at("/proc/1/cgroup"))) else None


def _mounts() -> list[dict]:
    """Mounts at the places that matter here."""
    text = text_of(at("/proc/self/mountinfo"))
    return [{"path": path, "type": kind, "source": source} for path, kind, source in MOUNT.findall(text) if _of(path)]


def _of(path: str) -> bool:
    return bool(PLACES.match(path))


def _given() -> dict[str, bool]:
    """Whether the parts of the driver are there; an empty folder is none."""
    return {name: _is_there(path) for name, path in GIVEN.items()}


def _is_there(path: str) -> bool:
    place = at(path)
    return any(place.iterdir()) if place.is_dir() else place.exists()


def _capabilities() -> dict[str, bool]:
    mask = int(re.search(r"^CapEff:\s*([0-9a-f]+)$", text_of(at("/proc/self/status")), re.MULTILINE)[1], 16)
    return {name: bool(mask >> bit & 1) for name, bit in CAPABILITIES.items()}


def _docker(seconds: float) -> object:
    """The version of the client; a server that hangs is not asked."""
    if shutil.which("docker") is None:
        return None
    match = re.search(r"\d+\.\d+\.\d+", output("docker", "--version", seconds=seconds))
    return match[0] if match else unknown("docker --version names none")
