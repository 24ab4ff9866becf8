"""A check: a pure function from a case to what is wrong, and the row that says how it is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from checks.doctor.document import Facts
from checks.words import Text, Words
from matrix import Component, Matrix

PERFORMANCE, COMMERCIAL, CPU = "performance", "commercial", "cpu"
NPU, ALL = (PERFORMANCE, COMMERCIAL), (PERFORMANCE, COMMERCIAL, CPU)

# In the order in which they are shown.
CATEGORIES: dict[str, Text] = {
    "host": Text("Host", "主机"),
    "npu": Text("NPUs and driver", "NPU 与驱动"),
    "container": Text("Container", "容器"),
    "image": Text("Image", "镜像"),
    "cann": Text("CANN and NNAL", "CANN 与 NNAL"),
    "packages": Text("Python packages", "Python 包"),
    "network": Text("Network", "网络"),
    "ray": Text("Ray", "Ray"),
    "environment": Text("Environment variables", "环境变量"),
    "recipe": Text("Recipe's files and patches", "配方的文件与补丁"),
    "device": Text("On the device", "设备探测"),
    "cluster": Text("Between the nodes", "节点之间"),
}


NO_RECIPE = Text("no recipe was named", "未指定配方")


class Skip(Exception):
    """The check says nothing about this case; the text says why."""

    def __init__(self, reason: Text):
        super().__init__(reason.en)
        self.reason = reason


@dataclass(frozen=True)
class Fault:
    """What is wrong: expected, found, and what to do, best a command."""

    expected: Words
    found: Words
    remedy: Words


@dataclass(frozen=True)
class PatchState:
    """What became of a patch on the packages of the machine."""

    id: str
    state: str
    problem: str
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """What checks look at: facts of a machine, the matrix it is judged by, and the recipe if one was named."""

    facts: Facts
    matrix: Matrix
    settings: Mapping[str, object] | None = None  # of the recipe, by dotted key, resolved
    patches: Sequence[PatchState] | None = None
    recipe: str = ""  # its name
    host_gib: float | None = None  # of host memory that the recipe offloads to on a node

    def component(self, name: str) -> Component:
        """A component of the matrix; skipped where it has none of that name."""
        if name not in self.matrix.components:
            raise Skip(
                Text(f"the matrix {self.matrix.name} has no {name}", f"版本矩阵 {self.matrix.name} 中没有 {name}")
            )
        return self.matrix.components[name]

    def setting(self, key: str) -> object:
        """A value of the recipe; skipped where none was named or the recipe has no such key."""
        if self.settings is None:
            raise Skip(NO_RECIPE)
        if self.settings.get(key) is None:
            raise Skip(Text(f"the recipe has no {key}", f"配方中没有 {key}"))
        return self.settings[key]

    def size(self, key: str) -> int:
        """A whole number of the recipe."""
        value = self.setting(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Skip(Text(f"{key} is no whole number", f"{key} 不是整数"))
        return value

    @property
    def nodes(self) -> int:
        """Machines of the recipe; 1 without one."""
        return self.size("trainer.nnodes") if self.settings and "trainer.nnodes" in self.settings else 1


Level = Literal["fail", "warn"]
Body = Callable[[Case], Iterator[Fault]]


@dataclass(frozen=True)
class Check:
    """A row of the table of checks."""

    id: str
    title: Text
    body: Body
    level: Level = "fail"
    after: tuple[str, ...] = ("npu.present",)  # skipped unless these passed
    matrices: tuple[str, ...] = NPU
    problem: str = ""  # row of the table of known problems

    @property
    def category(self) -> str:
        return self.id.partition(".")[0]


@dataclass
class Table:
    """Checks by id, in the order in which they are judged."""

    rows: dict[str, Check] = field(default_factory=dict)

    def add(self, one: Check) -> None:
        if one.id in self.rows:
            raise ValueError(f"two checks are called {one.id}")
        if one.category not in CATEGORIES:
            raise ValueError(f"{one.id}: no category {one.category}")
        self.rows[one.id] = one


TABLE = Table()


def check(id: str, en: str, zh: str, **options) -> Callable[[Body], Body]:
    """Enters a function into the table. `en` and `zh` say what is true where it finds nothing."""

    def decorate(body: Body) -> Body:
        TABLE.add(Check(id, Text(en, zh), body, **options))
        return body

    return decorate
