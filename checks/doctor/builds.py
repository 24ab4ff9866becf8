"""Compilations at the first use: locks that a killed one leaves, and folders that nodes share."""

from collections.abc import Iterator

from checks.doctor.check import ALL, Case, Fault, check
from checks.words import Text

OLD = 600  # seconds; MindSpeed's operators compile in a minute or two
SHARED = ("nfs", "nfs4", "lustre", "gpfs", "ceph", "fuse.", "beegfs", "cifs", "dpc", "9p", "glusterfs")


def is_shared(kind: str) -> bool:
    """Whether a file system is one that nodes share."""
    return any(kind == one or (one.endswith(".") and kind.startswith(one)) for one in SHARED)


@check(
    "host.stale-locks",
    "no killed compilation has left its lock",
    "没有遗留的编译锁",
    matrices=ALL,
    after=(),
    problem="B8",
)
def stale_locks(case: Case) -> Iterator[Fault]:
    """torch's cpp_extension waits for the lock for ever, and says nothing after "Using … torch_extensions"."""
    for row in case.facts.rows("builds/locks"):
        if row.number("age_seconds") > OLD:
            path = row.text("path")
            yield Fault(
                Text("none", "无"),
                Text(
                    f"{path}, {row.number('age_seconds') / 60:.0f} minutes old",
                    f"{path}，已有 {row.number('age_seconds') / 60:.0f} 分钟",
                ),
                f"rm {path}",
            )


@check("host.shared-builds", "nodes do not compile into one folder", "节点不共用编译目录", level="warn", problem="B8")
def shared_builds(case: Case) -> Iterator[Fault]:
    if case.nodes > 1 and case.facts.has("builds/file_system") and is_shared(case.facts.text("builds/file_system")):
        found = f"{case.facts.text('builds/folder')} ({case.facts.text('builds/file_system')})"
        yield Fault(
            Text("a folder of this node", "本节点目录"), found, "export TORCH_EXTENSIONS_DIR=/tmp/torch_extensions"
        )
