"""The images of both matrices and the cpu image, built from the Dockerfile on stand-ins, and what runs inside them."""

import hashlib
import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from tests.image import base, context
from tests.image.store import Image

pytestmark = [pytest.mark.slow, pytest.mark.image]

HOME = Path("opt/ascend-rl")
SMOKE = ("train", "--recipe", "smoke", "--set", "trainer.total_training_steps=2", "--set", "trainer.test_freq=-1")
CPU_LIMIT = 2.5e9  # bytes
SEEDS = ("usr/share/python-wheels/", "/virtualenv/seed/wheels/")  # what new environments are made from
SPOILING = ("*.whl", "pip.conf", "pip.ini", ".netrc", ".git-credentials", "uv_cache.json")


@pytest.fixture(scope="module", params=[pytest.param(one, marks=pytest.mark.image(one)) for one in context.MATRICES])
def image(request, image_of) -> Image:
    """The image of a matrix."""
    return image_of(request.param)


@pytest.fixture(scope="module")
def cpu(image_of) -> Image:
    """The image for machines without an NPU."""
    return image_of("cpu")


def matrix_of(image: Image) -> str:
    return image.config["Labels"]["ascend-rl.matrix"]


def test_the_doctor_knows_its_image(image):
    found = image.run("doctor")
    assert found.status in (0, 1), found.output
    assert "Traceback" not in found.output and matrix_of(image) in found.output


def test_the_recipe_is_linted(image):
    found = image.run("lint", "--recipe", "qwen3-235b-30k")
    assert found.status in (0, 1), found.output
    assert "Traceback" not in found.output and "qwen3-235b-30k" in found.output


def test_it_trains_as_user_1000_without_a_network(image):
    found = image.run(*SMOKE)
    assert found.status == 0, found.output[-6000:]
    assert image.config["User"] == "1000:1000"


def test_any_command_runs_in_cann_s_environment(image):
    wanted = "id -u; id -g; echo $ASCEND_OPP_PATH; echo $ATB_HOME_PATH; echo [$LD_PRELOAD]; touch $ASCEND_WORK_PATH/x"
    found = image.run("bash", "-c", wanted)
    nnal = "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"
    preloaded = "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2" if os.uname().machine == "aarch64" else ""
    assert found.lines == ["1000", "1000", f"{base.TOOLKIT}/opp", nnal, f"[{preloaded}]"]


def test_the_manifest_says_what_is_inside(image, stand_ins):
    with image.files() as root:
        manifest = json.loads((root / HOME / "manifest.json").read_text())
        bill = json.loads((root / HOME / "sbom.json").read_text())
        commits = {path.parent.name: _commit(path) for path in root.glob(f"{HOME}/venv/**/direct_url.json")}
    name = matrix_of(image)
    tables = tomllib.loads((stand_ins.context / "matrix.toml").read_text())
    wanted = tables["performance"]["components"] | tables[name]["components"]
    assert manifest["matrix"] == name and manifest["base"] == stand_ins.base.name
    for component in context.FOLDERS:
        assert manifest["components"][component]["commit"] == wanted[component]["commit"]
        assert wanted[component]["commit"] in commits.values()
    lock = stand_ins.context / manifest["lock"]["file"]
    assert manifest["lock"]["sha256"] == hashlib.sha256(lock.read_bytes()).hexdigest()
    assert {patch["state"] for patch in manifest["patches"]} <= {"applied", "not needed"}
    assert "applied" in {patch["state"] for patch in manifest["patches"]}
    named = {(part["name"], part["version"]) for part in bill["components"]}
    assert named >= set(manifest["packages"].items()) and named >= set(manifest["debian"].items())
    assert manifest["debian"].keys() >= debian("npu")


def debian(image: str) -> set[str]:
    """What debian.txt has for an image."""
    rows = (line.split() for line in (context.ROOT / "image/debian.txt").read_text().splitlines())
    return {row[0] for row in rows if row and row[0] != "#" and image in row[1:4]}


def _commit(path: Path) -> str:
    return json.loads(path.read_text()).get("vcs_info", {}).get("commit_id", "")


def test_labels_say_what_it_is(image, stand_ins):
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.base.name"] == stand_ins.base.name
    assert {f"org.opencontainers.image.{key}" for key in ("title", "description", "licenses")} <= labels.keys()
    assert image.description["config"]["Healthcheck"]["Test"][0] == "CMD"


def test_nothing_spoils_it(image):
    assert spoilt(image) == []


def test_its_health_check_passes(image):
    found = image.run(*image.config["Healthcheck"]["Test"][1:])
    assert (found.status, found.lines[-1:]) == (0, ["fine"])


@pytest.mark.image("performance", "again")
def test_a_second_build_has_the_same_layers(image_of):
    assert image_of("again").layers == image_of("performance").layers


@pytest.mark.image("cpu")
def test_the_cpu_image_is_small(cpu):
    with cpu.files() as root:
        size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_symlink())
    assert size < CPU_LIMIT
    assert spoilt(cpu) == []


@pytest.mark.image("cpu")
def test_the_cpu_image_trains(cpu):
    found = cpu.run(*SMOKE)
    assert found.status == 0, found.output[-6000:]


def spoilt(image: Image) -> list[str]:
    """What was handed to the build or only costs room, and folders that anybody may write."""
    with image.files() as root:
        names = [str(path.relative_to(root)) for pattern in SPOILING for path in root.rglob(pattern)]
        names = [name for name in names if not any(place in name for place in SEEDS)]
        caches = [
            place for place in ("root/.cache", "var/lib/apt/lists", "sources", "run/secrets") if any(_in(root / place))
        ]
        open_to_all = [
            str(path.relative_to(root))
            for path in (root / "opt", root / "usr", root / "etc", root / "var")
            for path in (path, *path.rglob("*"))
            if not path.is_symlink() and path.is_dir() and _writable(path)
        ]
    return [*names, *caches, *open_to_all]


def _in(folder: Path):
    return folder.iterdir() if folder.is_dir() else ()


def _writable(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
