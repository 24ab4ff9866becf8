"""The stand-ins themselves, as far as that can be seen without building an image."""

import subprocess
import time
import tomllib

import pytest

import environment
import lock
import matrix as matrices
from tests.image import context, sources


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """The context's files that are not the checkout's."""
    folder = tmp_path_factory.mktemp("context")
    context.copy(folder)
    commits = {
        name: {component: f"{at:040x}" for at, component in enumerate(context.FOLDERS)} for name in context.MATRICES
    }
    context.change(folder, commits)
    return folder


def test_the_same_tree_makes_the_same_commit(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("a = 1\n")
    one, two = (sources.commit(tmp_path / name, tmp_path / f"{name}.git") for name in ("one", "two"))
    (tmp_path / "two" / "a.py").write_text("a = 2\n")
    assert one == two != sources.commit(tmp_path / "two", tmp_path / "three.git")
    command = ["git", "-C", tmp_path / "one.git", "log", "-1", "--format=%at %ct"]
    dates = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(set(dates)) == 1 and int(dates[0]) < time.time() - 86400  # not those of the day


@pytest.mark.parametrize("name", context.MATRICES)
def test_the_context_differs_in_the_stand_ins_and_torch_only(changed, name):
    chosen, own = matrices.load(name, changed / "matrix.toml"), matrices.load(name)
    assert {one: chosen.component(one).commit for one in context.FOLDERS} == {
        one: f"{at:040x}" for at, one in enumerate(context.FOLDERS)
    }
    file = lock.lock_file(name)
    here, there = (
        {one.name: one.text for one in environment.entries(path.read_text())} for path in (changed / file.name, file)
    )
    differing = {key for key in here.keys() | there.keys() if here.get(key) != there.get(key)}
    assert differing == {"torch", "torchvision"} and "torchvision" not in here
    cpu = matrices.load("cpu")
    assert here["torch"].split()[0] == f"torch=={cpu.component('torch').version}"
    assert lock.digest(chosen) in (changed / file.name).read_text() and lock.digest(chosen) != lock.digest(own)


def test_recipes_are_judged_by_the_keys_of_the_commits_that_are_stood_in_for(changed):
    known = [changed / "recipes/schema/data" / f"{name}-{0:07x}.json" for name in ("verl", "mindspeed", "megatron-lm")]
    assert all(file.is_file() for file in known)


def test_what_is_meant_is_added_to_what_the_checkout_means(changed):
    here, own = (
        tomllib.loads((root / "image/contents.toml").read_text()).get("allowed", []) for root in (changed, context.ROOT)
    )
    assert here[: len(own)] == own and len(here) == len(own) + len(context.MEANT)


def test_nothing_of_the_machine_is_in_the_context(changed):
    assert not [name for name in (".git", ".venv", "runs", "assets") if (changed / name).exists()]
