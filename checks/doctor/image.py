"""A container of this project's image: whether what is in it is still what the build put there, by its manifest."""

from collections.abc import Iterator

from checks.doctor.check import ALL, Case, Fault, Skip, check
from checks.doctor.document import Facts
from checks.doctor.npu import NONE
from checks.doctor.packages import source_commit, tree_commit
from checks.words import Text

SHOWN = 5  # names in one line
NEW = Text("start a new container from the image", "用镜像重新创建容器")
# Components by other names than their package's and their module's: distribution, module.
NAMES = {"megatron-lm": ("megatron-core", "megatron")}


def manifest(case: Case) -> Facts:
    """The manifest; skipped outside of the image, Missing where it cannot be read."""
    why = case.facts.why("image")
    if why.endswith("not among the facts") or (not why and not case.facts.has("image")):
        raise Skip(Text("not a container of this project's image", "不在本项目镜像的容器内"))
    return case.facts.at("image")


@check("image.matrix", "the image is this matrix's", "镜像属于该版本矩阵", matrices=ALL, after=(), problem="B9")
def matrix(case: Case) -> Iterator[Fault]:
    found = manifest(case).text("matrix")
    if found != case.matrix.name:
        yield Fault(case.matrix.name, found, f"docker run … ascend-rl:{case.matrix.name}, --matrix {found}")


@check(
    "image.packages", "packages are as the image was built", "Python 包与镜像构建时一致",
    matrices=ALL, after=(), problem="B10",
)  # fmt: skip
def packages(case: Case) -> Iterator[Fault]:
    """pip in the container, or a requirements file of verl's or vllm-ascend's, takes the lock's versions back."""
    wanted, found = _versions(manifest(case), "packages"), _versions(case.facts, "packages")
    other = [name for name, version in wanted.items() if found.get(name) != version]
    if other:
        changed = [f"{name} {found.get(name, 'none')}" for name in other]
        yield Fault(_some([f"{name} {wanted[name]}" for name in other]), _some(changed), NEW)


@check(
    "image.added", "no package was added to the image's", "没有在镜像之外安装的包",
    level="warn", matrices=ALL, after=(), problem="B10",
)  # fmt: skip
def added(case: Case) -> Iterator[Fault]:
    wanted, found = _versions(manifest(case), "packages"), _versions(case.facts, "packages")
    further = [f"{name} {version}" for name, version in found.items() if name not in wanted]
    if further:
        remedy = Text(
            "add it to matrix.toml, invoke lock, and build the image again",
            "写入 matrix.toml，执行 invoke lock 并重新构建镜像",
        )
        yield Fault(NONE, _some(further), remedy)


@check(
    "image.components", "components are of the commits that the image was built from", "组件提交与镜像构建时一致",
    matrices=ALL, after=(), problem="B11",
)  # fmt: skip
def components(case: Case) -> Iterator[Fault]:
    """The commits that installations name, and those of checkouts that are found before them."""
    for name, built in manifest(case).table("components").items():
        if built.has("install") and built.text("install") == "git":
            distribution, module = NAMES.get(name, (name, name.replace("-", "_")))
            wanted = built.text("commit")
            for found in (_origin(case, distribution), tree_commit(case, module)):
                if found and found != wanted:
                    yield Fault(f"{name} {wanted[:8]}", found[:80], NEW)


@check(
    "image.patches",
    "patches are as the image was built",
    "补丁状态与镜像构建时一致",
    matrices=ALL,
    after=(),
    problem="B12",
)
def patches(case: Case) -> Iterator[Fault]:
    rows = manifest(case).rows("patches")
    if case.patches is None:
        raise Skip(Text("not looked at: these facts are another machine's", "未检查：事实来自另一台机器"))
    states = {one.id: one.state for one in case.patches}
    for row in rows:
        name, wanted = row.text("id"), row.text("state")
        if states.get(name) != wanted:
            yield Fault(f"{name}: {wanted}", states.get(name, "none"), NEW)


def _versions(place: Facts, name: str) -> dict[str, str]:
    return {one: str(version.value) for one, version in place.table(name).items()}


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" … ({len(names)})" if len(names) > SHOWN else "")


def _origin(case: Case, distribution: str) -> str | None:
    """What a distribution says of where it is from; None where it is not there, which image.packages reports."""
    place = f"stack/sources/{distribution}"
    if not case.facts.has(place):
        return None
    source = case.facts.at(place)
    return source_commit(case, distribution) or source.text("folder" if source.has("folder") else "from")
