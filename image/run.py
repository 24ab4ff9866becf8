"""The exact command that runs the image on a host: devices, driver, memory, limits and volumes, from the host's facts.

compose.yaml says the same for a host with eight NPUs; `tests/image/test_run.py` compares them.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from checks.doctor.document import Facts, Missing
from checks.facts.npu import MANAGERS

HOME = "/opt/ascend-rl"
# What outlives the container: variable that names another volume or a folder, the default, the place. The cache has
# operators that were compiled at their first use, which fit one matrix only.
VOLUMES = (
    ("ASCEND_RL_RUNS", "ascend-rl-runs", f"{HOME}/project/runs"),
    ("ASCEND_RL_ASSETS", "ascend-rl-assets", f"{HOME}/project/assets"),
    ("ASCEND_RL_CACHE", "ascend-rl-cache-{matrix}", f"{HOME}/cache"),
)
# The host's driver: name among the facts, path, what it is for.
DRIVER = (
    ("driver_libraries", "/usr/local/Ascend/driver", "libraries and tools of the driver"),
    ("dcmi", "/usr/local/dcmi", "device management, for npu-smi"),
    ("install_info", "/etc/ascend_install.info", "where the driver is"),
    ("hccn_conf", "/etc/hccn.conf", "addresses of the NPUs' ports, for several nodes"),
)
SHARED_NPU, SHARED_EMULATED = "64g", "16g"
LIMITS = {"nofile": 65536, "core": 0}
LOCKED = {"memlock": -1}
STOP_SECONDS = 30  # a run ends within 20 s of a signal; the engines' default is to kill after 10 s
# ray 2.46.0, _private/resource_spec.py:243
SHARED = "{shared} of shared memory, not 64 MiB: Ray keeps its objects there, 30 % of the memory, at most 95 % of this"
REASONS = (
    "nofile: Ray's sockets; core 0: what a crash of all ranks leaves would fill the disk",
    "pids-limit: Podman's default is 2048 processes",
)
MEMLOCK = "memlock: what NPUs and network cards read is locked in memory"
NETWORK = "the host's network: Ray and HCCL reach the other nodes, and are reached, by the host's addresses"

# Seen when the script runs: a terminal where it has one, for `bash`, and what its user wants besides.
TERMINAL = "terminal=; [ -t 0 ] && [ -t 1 ] && terminal=-it"
HERE = "$terminal ${ASCEND_RL_OPTIONS:-}"
USE = (
    'further options: ASCEND_RL_OPTIONS="--user 0:0 -v /data:/data:ro" sh FILE …',
    "in the background: sh FILE … < /dev/null > FILE.log 2>&1 &",
)


@dataclass
class Container:
    """How a container is run. `notes`: what a person should know about it."""

    shared: str
    network: str | None = None
    devices: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=lambda: dict(LIMITS))
    mounts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def options(self, matrix: str) -> Iterator[str]:
        """The options of `docker run`, those of a subject on one line; for a shell."""
        yield f"--rm --init --stop-timeout {STOP_SECONDS}"
        if self.network:
            yield f"--network {self.network}"
        yield f"--shm-size {self.shared} --pids-limit -1"
        yield " ".join(f"--ulimit {name}={limit}" for name, limit in self.limits.items())
        yield from (f"--device {device}" for device in self.devices)
        yield from (f"--group-add {group}" for group in self.groups)
        yield from (f"-v {shlex.quote(place)}:{shlex.quote(place)}:ro" for place in self.mounts)
        yield from (f'-v "${{{name}:-{default.format(matrix=matrix)}}}:{place}"' for name, default, place in VOLUMES)


def container(facts: Facts) -> Container:
    """The container for a host: with its NPUs where it has some, else for emulated ones."""
    nodes = _nodes(facts)
    chips = [name for name in nodes if re.fullmatch(r"davinci\d+", name)]
    if not chips:
        return emulated(f"no NPU on this host: {facts.why('npu/nodes') or 'there is no /dev/davinci0'}")
    made = Container(SHARED_NPU, "host", [f"/dev/{name}" for name in nodes], limits={**LOCKED, **LIMITS})
    made.notes += [f"NPUs of this host: {len(chips)}", NETWORK, SHARED.format(shared=SHARED_NPU), MEMLOCK, *REASONS]
    for name in MANAGERS:
        if name not in nodes:
            made.notes.append(f"expected /dev/{name}, found none: the driver is not loaded as a whole; `invoke doctor`")
    _give_groups(made, nodes)
    _give_driver(made, facts)
    return made


def emulated(why: str) -> Container:
    """The container for emulated NPUs, which runs anywhere."""
    notes = [why, "on emulated NPUs: `doctor`, `train --recipe smoke`, `train --recipe R --rehearse`"]
    return Container(SHARED_EMULATED, notes=[*notes, SHARED.format(shared=SHARED_EMULATED), *REASONS])


def script(made: Container, image: str, matrix: str, engine: str) -> str:
    """A script for a shell that runs the image with the script's arguments: `sh FILE doctor`."""
    notes = "".join(f"# {note}\n" for note in (*made.notes, *USE))
    lines = [f"{engine} run", *made.options(matrix), HERE, f'{shlex.quote(image)} "$@"']
    return f"#!/bin/sh\n{notes}{TERMINAL}\n" + " \\\n  ".join(lines) + "\n"


def _nodes(facts: Facts) -> dict[str, Facts]:
    """Device nodes by name, chips first, each in its order."""
    try:
        return {node.text("name"): node for node in facts.rows("npu/nodes")}
    except Missing:
        return {}


def _give_groups(made: Container, nodes: dict[str, Facts]) -> None:
    """The groups that the device nodes are open to, for a user who is not root."""
    for name, node in nodes.items():
        mode, group = int(node.text("mode"), 8), int(node.number("group"))
        if mode & 0o060 == 0o060 and group and group not in made.groups:
            made.groups.append(group)
        elif mode & 0o006 != 0o006 and not (mode & 0o060 == 0o060 and group):
            made.notes.append(
                f"/dev/{name} is open to root only (mode {mode:o}, group {group}): give it to the driver's group, "
                "HwHiAiUser, or run as root: ASCEND_RL_OPTIONS='--user 0:0'"
            )


def _give_driver(made: Container, facts: Facts) -> None:
    for name, place, use in DRIVER:
        if facts.has(f"container/given/{name}") and facts.flag(f"container/given/{name}"):
            made.mounts.append(place)
        else:
            made.notes.append(f"not on this host: {place} ({use})")
    if facts.has("npu/tool"):
        made.mounts.append(facts.text("npu/tool"))
    else:
        made.notes.append("not on this host: npu-smi, by which `doctor` asks for the NPUs' health")
