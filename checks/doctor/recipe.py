"""What the recipe named on the command line needs of this machine: its files, its patches, preloaded libraries."""

from collections.abc import Iterator

from checks.doctor import image
from checks.doctor.builds import is_shared
from checks.doctor.check import ALL, NO_RECIPE, NPU, Case, Fault, Skip, check
from checks.doctor.document import Facts
from checks.doctor.host import GIB, size
from checks.doctor.npu import NONE
from checks.words import Text

LOCAL = ("ext4", "ext3", "xfs", "btrfs", "overlay", "tmpfs", "zfs")
CHECKPOINT = "trainer.default_local_dir"


def _path(case: Case, key: str) -> Facts:
    case.setting(key)
    if key not in case.facts.table("paths"):
        raise Skip(Text("the facts were saved without this recipe", "保存事实时未指定此配方"))
    return case.facts.at(f"paths/{key}")


def _there(case: Case, key: str, verb: str, fill: bool = False) -> Iterator[Fault]:
    row = _path(case, key)
    empty = fill and row.has("entries") and row.number("entries") == 0
    if not row.flag("exists") or empty:
        yield Fault(row.text("path"), NONE if not row.flag("exists") else Text("an empty folder", "空目录"), verb)


@check("recipe.model", "the model is there", "模型存在", matrices=ALL, after=())
def model(case: Case) -> Iterator[Fault]:
    yield from _there(case, "actor_rollout_ref.model.path", f"invoke weights --recipe {case.recipe}", fill=True)


@check(
    "recipe.megatron-weights", "Megatron's weights are there", "Megatron 权重存在", matrices=ALL, after=(), problem="S6"
)
def megatron_weights(case: Case) -> Iterator[Fault]:
    if case.setting("actor_rollout_ref.actor.megatron.use_dist_checkpointing") is not True:
        raise Skip(Text("read from Hugging Face's", "从 Hugging Face 权重读取"))
    yield from _there(
        case,
        "actor_rollout_ref.actor.megatron.dist_checkpointing_path",
        f"invoke weights --recipe {case.recipe}",
        fill=True,
    )


@check("recipe.data", "the training data are there", "训练数据存在", matrices=ALL, after=())
def data(case: Case) -> Iterator[Fault]:
    yield from _there(case, "data.train_files", f"invoke data --recipe {case.recipe}")


@check("recipe.checkpoint-writable", "checkpoints can be written", "检查点目录可写", matrices=ALL, after=())
def checkpoint_writable(case: Case) -> Iterator[Fault]:
    row = _path(case, CHECKPOINT)
    if not row.flag("writable"):
        yield Fault(Text("writable", "可写"), row.text("path"), f"--set {CHECKPOINT}=…")


@check("recipe.checkpoint-shared", "all nodes write one checkpoint", "各节点写入同一检查点目录", problem="E18")
def checkpoint_shared(case: Case) -> Iterator[Fault]:
    """On a disk of each node a run ends well and every node holds a part of the checkpoint."""
    if case.nodes < 2:
        raise Skip(Text("one node", "单节点"))
    row = _path(case, CHECKPOINT)
    kind = row.text("file_system")
    if kind in LOCAL:
        yield Fault(
            Text("a shared file system", "共享文件系统"),
            f"{row.text('path')} ({kind})",
            f"--set {CHECKPOINT}=/…/shared",
        )


@check("recipe.kept", "nothing is written into the container's own layer", "数据不写入容器层", level="warn")
def kept(case: Case) -> Iterator[Fault]:
    if not case.facts.has("container/kind"):
        raise Skip(Text("not a container", "不在容器内"))
    row = _path(case, CHECKPOINT)
    if row.text("file_system") == "overlay":
        yield Fault(
            Text("a mounted folder", "挂载目录"),
            row.text("path"),
            f"docker run -v /data:/data …, --set {CHECKPOINT}=/data/…",
        )


@check("recipe.data-shared", "every node reads the same data", "各节点读取同一份数据", level="warn")
def data_shared(case: Case) -> Iterator[Fault]:
    if case.nodes < 2:
        raise Skip(Text("one node", "单节点"))
    for key in ("actor_rollout_ref.model.path", "data.train_files"):
        row = _path(case, key)
        kind = row.text("file_system")
        if row.flag("exists") and not is_shared(kind):
            yield Fault(
                Text("a shared file system, or a copy on each node", "共享文件系统，或各节点均有副本"),
                f"{row.text('path')} ({kind})",
                "invoke doctor --cluster",
            )


@check("recipe.host-memory", "the host's memory holds what is offloaded", "主机内存可容纳卸载的数据", problem="C10")
def host_memory(case: Case) -> Iterator[Fault]:
    """Weights, optimizer states and the sleeping rollout's weights (F26); processes and Ray's objects come on top."""
    if case.host_gib is None:
        raise Skip(NO_RECIPE)
    found = case.facts.number("memory/total")
    if case.facts.has("memory/limit"):
        found = min(found, case.facts.number("memory/limit"))
    if found < case.host_gib * GIB:
        yield Fault(f"{case.host_gib:.0f} GiB", size(found), f"invoke lint --recipe {case.recipe}")


@check("recipe.preload", "preloaded libraries are there", "预加载的库存在", level="warn", problem="I4")
def preload(case: Case) -> Iterator[Fault]:
    for row in case.facts.rows("cann/preloads"):
        if not row.flag("exists"):
            yield Fault(row.text("path"), NONE, "apt-get install libjemalloc2, unset LD_PRELOAD")


def _states(case: Case, state: str) -> list:
    if case.patches is None:
        raise Skip(Text("not looked at: these facts are another machine's", "未检查：事实来自另一台机器"))
    return [one for one in case.patches if one.state == state]


@check("recipe.patches-drifted", "patches know the installed packages", "补丁识别已安装的包", matrices=NPU)
def patches_drifted(case: Case) -> Iterator[Fault]:
    for one in _states(case, "drifted"):
        yield Fault(
            Text("applied or pending", "已应用或待应用"), f"{one.id}: {one.reason}"[:200], "invoke patches.list"
        )


@check(
    "recipe.patches-applied",
    "patches are applied",
    "补丁已应用",
    matrices=NPU,
    after=("npu.present", "recipe.patches-drifted"),
    problem="F1",
)
def patches_applied(case: Case) -> Iterator[Fault]:
    pending = _states(case, "pending")
    if pending:
        shown = ", ".join(f"{one.id} ({one.problem})" for one in pending)
        inside = case.facts.has("image")  # whose packages are root's
        remedy = image.NEW if inside else f"invoke patches.apply --matrix {case.matrix.name}"
        yield Fault(Text("applied", "已应用"), shown, remedy)
