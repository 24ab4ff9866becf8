"""Sources come by their full commit, whoever serves them, or the build ends with one line that says which and why."""

import dataclasses
import functools
import http.server
import json
import os
import subprocess
import threading

import pytest

from image.steps import sources
from image.steps.step import IMAGES, Pin, StepError, pins, run

QUIET = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def git(folder, *arguments):
    environment = {**os.environ, **QUIET, **AUTHOR}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, env=environment
    ).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A bare repository with two commits; (path, the first, the second)."""
    work, bare = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("bare") / "one.git"
    git(work, "init", "--quiet", "--initial-branch=main")
    commits = []
    for text in ("first", "second"):
        (work / "module.py").write_text(text)
        git(work, "add", ".")
        git(work, "commit", "--quiet", "--message", text)
        commits.append(git(work, "rev-parse", "HEAD"))
    git(work, "clone", "--quiet", "--bare", str(work), str(bare))
    return bare, *commits


@pytest.fixture
def pin(repository):
    return Pin("vllm-ascend", "https://nowhere.invalid/x", "main", "git", repository[1], None)


def test_an_older_commit_comes_without_history(pin, repository, tmp_path):
    sources.fetch(pin, tmp_path / "tree", str(repository[0]))
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["module.py"]
    assert (tmp_path / "tree" / "module.py").read_text() == "first"


def test_a_server_that_gives_branches_only_serves_their_commits_too(pin, repository, tmp_path, monkeypatch):
    attempt = sources._Git.attempt

    def refusing(self, *arguments):
        asked = arguments[0] == "fetch" and pin.commit in arguments
        return "error: Server does not allow request for unadvertised object" if asked else attempt(self, *arguments)

    monkeypatch.setattr(sources._Git, "attempt", refusing)
    sources.fetch(pin, tmp_path / "tree", str(repository[0]))
    assert (tmp_path / "tree" / "module.py").read_text() == "first"
    with pytest.raises(StepError, match="no such commit in it"):
        absent = dataclasses.replace(pin, commit="0" * 39 + "1")
        monkeypatch.setattr(sources._Git, "attempt", lambda self, *a: "not our ref" if "0" in a[-1] else "")
        sources.fetch(absent, tmp_path / "other", str(repository[0]))


def test_a_mirror_of_plain_files_serves_them_too(pin, repository, tmp_path):
    git(repository[0], "update-server-info")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=repository[0].parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sources.fetch(pin, tmp_path / "tree", f"http://127.0.0.1:{server.server_port}/one.git")
        server.shutdown()
    assert (tmp_path / "tree" / "module.py").read_text() == "first"


def test_a_commit_that_is_not_there_is_named_with_what_to_do(pin, repository, tmp_path):
    absent = dataclasses.replace(pin, commit="0" * 39 + "1")
    with pytest.raises(StepError) as error:
        sources.fetch(absent, tmp_path / "tree", str(repository[0]))
    text = str(error.value)
    assert text.startswith(f"expected vllm-ascend at commit {absent.commit} from {repository[0]}, found ")
    assert "--build-arg VLLM_ASCEND_REPOSITORY=URL" in text and "\n" not in text


def test_a_repository_that_does_not_answer_is_named_without_its_password(pin, tmp_path):
    with pytest.raises(StepError) as error:
        sources.fetch(pin, tmp_path / "tree", "http://user:secret@127.0.0.1:9/x.git")
    assert "from http://127.0.0.1:9/x.git, found " in str(error.value)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_submodules_would_be_missing_and_are_refused(pin, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "--quiet")
    (work / ".gitmodules").write_text("")
    git(work, "add", ".")
    git(work, "commit", "--quiet", "--message", "x")
    with pytest.raises(StepError, match="submodules"):
        sources.fetch(dataclasses.replace(pin, commit=git(work, "rev-parse", "HEAD")), tmp_path / "tree", str(work))


def test_all_components_come_from_their_mirrors_and_are_recorded_with_the_matrixs_repository(
    repository, tmp_path, monkeypatch, capsys
):
    named = {name: dataclasses.replace(pin, commit=repository[2]) for name, pin in pins("performance").items()}
    monkeypatch.setattr(sources, "pins", lambda matrix: named)
    for name in named:
        monkeypatch.setenv(sources.variable(name), str(repository[0]))
    assert run("sources", sources.fetch_all, ["performance", str(tmp_path / "sources")]) == 0
    record = json.loads((tmp_path / "sources" / "sources.json").read_text())
    assert sorted(record) == sorted(name for name, pin in named.items() if pin.install == "git")
    assert all(one["commit"] == repository[2] for one in record.values())
    assert record["verl"]["repository"] == named["verl"].repository
    assert (tmp_path / "sources" / "megatron-lm" / "module.py").read_text() == "second"
    assert f"verl {repository[2]}" in capsys.readouterr().out


@pytest.mark.parametrize("given, hint", [("cpu", "--target cpu"), ("fast", "name one of them")])
def test_a_wrong_matrix_ends_in_one_line(given, hint, tmp_path, capsys):
    assert run("sources", sources.fetch_all, [given, str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"image: sources: expected MATRIX performance or commercial, found '{given}'; ")
    assert hint in said and said.count("\n") == 1


def test_no_space_ends_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sources, "SPACE_GB", 1e9)
    assert run("sources", sources.fetch_all, ["performance", str(tmp_path / "not" / "there")]) == 1
    assert "free some where the engine keeps its images" in capsys.readouterr().err


@pytest.mark.parametrize("matrix", IMAGES)
def test_pins_are_those_that_the_checked_reader_finds(matrix):
    import matrix as matrices

    checked = matrices.load(matrix).components
    assert {name: (pin.repository, pin.commit, pin.version) for name, pin in pins(matrix).items()} == {
        name: (one.repository, one.commit, one.version) for name, one in checked.items()
    }
