"""Builds that cannot be: each stops at its step with one line that says which and what to do."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.image.stand_ins import StandIns
from tests.image.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.image]


@pytest.fixture
def changed(stand_ins, tmp_path):
    """A copy of the context with one file changed."""

    def make(name: str, change) -> Path:
        folder = tmp_path / "context"
        shutil.copytree(stand_ins.context, folder)
        text = (folder / name).read_text()
        assert change(text) != text
        (folder / name).write_text(change(text))
        return folder

    return make


def stopped(result, step: str) -> str:
    """The one line of a step, which must be the only one of that kind."""
    assert result.status != 0, result.output[-3000:]
    (line,) = [line for line in result.lines if line.startswith(f"image: {step}: ")]
    assert re.search(r"expected .+, found .+; .+", line), line
    assert "Traceback" not in result.output
    return line


def test_a_wrong_matrix(build):
    line = stopped(build("localhost/bad", target="src", MATRIX="perfomance"), "sources")
    assert "performance or commercial" in line and "'perfomance'" in line and "--build-arg MATRIX=" in line


def test_a_base_that_is_not_there(build):
    result = build("localhost/bad", target="base", BASE_IMAGE="localhost/no-such-base")
    assert result.status != 0 and "localhost/no-such-base" in result.lines[-1]


def test_a_commit_that_is_not_there(build, changed):
    wrong = "0123456789abcdef0123456789abcdef01234567"
    context = changed(
        "matrix.toml",
        lambda text: re.sub(r'(\[performance\.components\.verl\][^[]*?commit = )"\w+"', rf'\1"{wrong}"', text),
    )
    line = stopped(build("localhost/bad", target="src", at=context), "sources")
    assert wrong in line and "--build-arg VERL_REPOSITORY=URL" in line


def test_a_hash_that_does_not_match(build, changed):
    def tamper(text: str) -> str:
        start, end = text.index("\nuv=="), text.index("\nuvicorn==")
        return text[:start] + re.sub(r"sha256:\w+", "sha256:" + "0" * 64, text[start:end]) + text[end:]

    line = stopped(build("localhost/bad", target="build", at=changed("requirements.lock", tamper)), "packages")
    assert "not the one of the lock" in line


DRIFT = r"""
cd /opt/ascend-rl/project && python cli.py patches.revert
cd /opt/ascend-rl/venv/lib/python3.11/site-packages/mindspeed/te/pytorch/module
printf '\n    def set_extra_state(self, state, more):\n        pass\n' >> layernorm_column_parallel_linear.py
cd /opt/ascend-rl/project && python -m image.steps.patch performance
"""


@pytest.mark.image("performance")
def test_a_source_that_has_drifted(image_of, store):
    """Found by the step that patches, in the environment of an image that is there already: upstream has the method."""
    with store.container(image_of("performance").name) as container:
        options = ("--isolation", "chroot", "--user", "0", "--env", "TORCH_DEVICE_BACKEND_AUTOLOAD=0")
        line = stopped(store.buildah("run", *options, container, "--", "bash", "-c", DRIFT), "patches")
    assert "mindspeed/extra-state" in line and "drifted" in line


def test_a_full_disk(stand_ins: StandIns, tmp_path):
    """Images on a file system with less room than a step needs; the base is read from where it is."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", small], check=True)
    try:
        store = Store(small, ("--storage-opt", f"additionalimagestore={stand_ins.store.folder / 'root'}"))
        result = dataclasses.replace(stand_ins, store=store).build("localhost/bad", target="src")
        line = stopped(result, "sources")
        store.empty()
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
    assert "GB free" in line and "free some" in line
