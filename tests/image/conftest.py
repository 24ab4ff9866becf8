"""Images built from the checkout's own Dockerfile on stand-ins, two at a time and before they are asked for.

Everything lies in one folder below pytest's and is removed at the end, but for the base images' file systems and the
installer's cache, which stay in the cache folder.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.image import base, context
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
def image_of(stand_ins, request) -> Iterator[Callable[[str], Image]]:
    """The image of a matrix; that of `cpu` is the one for machines without an NPU, `again` performance's second one.

    Those are built that the marker `image` of a selected test names.
    """
    slim = base.image(stand_ins.store, base.SLIM)
    builds = {matrix: ((), {"MATRIX": matrix}) for matrix in context.MATRICES}
    builds["cpu"] = ((), {"target": "cpu", "CPU_BASE_IMAGE": slim.name})
    builds["again"] = (("--no-cache",), {"MATRIX": "performance"})
    named = [name for item in request.session.items for mark in item.iter_markers("image") for name in mark.args]
    pool = ThreadPoolExecutor(2)  # most of a build takes one core
    try:
        made = {}
        for name in dict.fromkeys(named):
            options, how = builds[name]
            made[name] = pool.submit(stand_ins.image, f"localhost/{name}", *options, **how)
        yield lambda name: made[name].result()
    finally:
        pool.shutdown(cancel_futures=True)
