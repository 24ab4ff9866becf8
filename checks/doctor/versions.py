"""Versions of the vendor's products and of packages: which is older."""

import re

from checks.doctor.document import Missing

# Before a release, in this order; any other word counts as a build of the release.
EARLIER = {"dev": -4, "alpha": -3, "a": -3, "beta": -2, "rc": -1}
LENGTH = 8


def key(version: str) -> tuple:
    """Orders 8.2.RC1.alpha002 < 8.2.RC1 < 8.2 = 8.2.0 < 8.2.1. Missing for a text without digits."""
    release = version.lower().partition("+")[0]
    words = re.findall(r"\d+|[a-z]+", release)
    if not any(word.isdigit() for word in words):
        raise Missing(f"expected a version, found {version!r}")
    parts = [(0, int(word)) if word.isdigit() else (EARLIER.get(word, 0), 0) for word in words]
    return tuple(parts + [(0, 0)] * (LENGTH - len(parts)))


def older(version: str, than: str) -> bool:
    """Whether a version comes before another."""
    return key(version) < key(than)


def same(version: str, other: str) -> bool:
    """Whether two texts mean the same version; what follows a plus sign does not count."""
    return key(version) == key(other)


def numbers(version: str, count: int) -> tuple[int, ...]:
    """The first numbers of a version."""
    return tuple(int(word) for word in re.findall(r"\d+", version)[:count])
