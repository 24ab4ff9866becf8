"""Images built from the checkout's own Dockerfile on stand-ins.

Everything lies in one folder below pytest's and is removed at the end, but for the base images' file systems and the
installer's cache, which stay in the cache folder.
"""

import functools
import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.image import base
from tests.image.stand_ins import StandIns
from tests.image.store import Image, Result, Store, unavailable


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Iterator[Store]:
    """Where images are built. Where none can be, tests are skipped; in continuous integration that is a failure."""
    if reason := unavailable():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no image can be built here: {reason}")
    made = Store(tmp_path_factory.mktemp("images"))
    yield made
    made.empty()
    shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def stand_ins(store, tmp_path_factory) -> StandIns:
    """Base, repositories and context of both matrices."""
    return StandIns.make(store, tmp_path_factory.mktemp("stand-ins"))


@pytest.fixture(scope="session")
def build(stand_ins) -> Callable[..., Result]:
    """Builds an image, whatever comes of it."""
    return stand_ins.build


@pytest.fixture(scope="session")
def image_of(stand_ins) -> Callable[[str], Image]:
    """The image of a matrix, built once; that of `cpu` is the one for machines without an NPU."""

    @functools.cache
    def of(matrix: str) -> Image:
        if matrix == "cpu":
            slim = base.image(stand_ins.store, base.SLIM)
            return stand_ins.image("localhost/cpu", target="cpu", CPU_BASE_IMAGE=slim.name)
        return stand_ins.image(f"localhost/{matrix}", MATRIX=matrix)

    return of
