"""Which files of a package index a glibc Linux can install, by its machine and Python."""

from functools import cache

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

GLIBC = 35  # 2.35 is that of Ubuntu 22.04, the NPU matrices' base


def fits(file_name: str, machine: str, python: str) -> bool:
    """Whether the wheel of that name can be installed; python is major.minor."""
    try:
        *_, tags = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return False
    return not tags.isdisjoint(_supported(machine, python))


def holds(marker: str | None, machine: str, python: str) -> bool:
    """Whether an environment marker holds there."""
    if not marker:
        return True
    place = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": machine}
    place |= {"python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}
    return Marker(marker).evaluate({**place, "platform_python_implementation": "CPython"})


@cache
def _supported(machine: str, python: str) -> frozenset[Tag]:
    """The tags of the wheels that can be installed."""
    major, minor = map(int, python.split("."))
    glibc = [f"manylinux_2_{one}_{machine}" for one in range(GLIBC, 4, -1)]
    platforms = [*glibc, *(f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux"))]
    interpreter = f"cp{major}{minor}"
    own = cpython_tags((major, minor), [interpreter], platforms)
    return frozenset([*own, *compatible_tags((major, minor), interpreter, platforms)])
