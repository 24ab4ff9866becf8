"""The READMEs' chapter on containers, followed command by command on the images that are built here.

There is no Docker. Its builds are those of the same Dockerfile, arguments and target that `conftest.py` makes with
buildah, its containers run there; what the host's own commands hand to `docker` is recorded, and taken for typed.
Mirrors, proxy and registry of the examples are nobody's, so that their builds end as those without them do. Trainings
are only prepared (--dry-run): test_build.py lets them train.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from image.build import PROXIES
from tests.image import chapter
from tests.image.chapter import ROOT
from tests.image.store import Image, Result
from tests.image.test_chapter import check_build, docker_build, docker_run, matrix_of
from tests.image.test_run import compose

pytestmark = [pytest.mark.slow, pytest.mark.image("performance", "commercial", "cpu")]

DOCKER = '#!/bin/sh\nfor one in "$@"; do printf "%s\\0" "$one"; done > {}\n'
SHOWN = re.compile(r"\$ DOCKER_BUILDKIT=1 docker (build .*? \.)$", re.DOTALL | re.MULTILINE)


class Reader:
    """Root of a careful host, who types what the chapter says in a folder of their own."""

    def __init__(self, folder: Path, image: Callable[[str], Image]):
        self.folder, self.image, self.tags, self.done = folder, image, {}, {}
        (folder / "bin").mkdir()
        (folder / ".config" / "pip").mkdir(parents=True)
        (folder / ".config" / "pip" / "pip.conf").write_text("[global]\nindex-url = https://index.example.com/simple\n")
        self.recorded = folder / "docker.words"
        for name, text in {
            "docker": DOCKER.format(self.recorded),
            "python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        }.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def type(self, command: str) -> Result:
        """A command of the chapter, with what it prints in the file that it names."""
        text, _, file = command.partition(" > ")
        words = [re.sub(r"\$(PWD|HOME)\b", str(self.folder), word) for word in shlex.split(text)]
        done = self._docker(words[1:]) if words[0] == "docker" else self._host(words)
        if file:
            (self.folder / file).write_text(done.output)
            (self.folder / file).chmod(0o600)
        return done

    def _docker(self, words: list[str]) -> Result:
        match words:
            case ["build", *rest]:
                check_build(rest)
                asked = docker_build(rest)
                assert all(Path(one.partition("src=")[2]).is_file() for one in asked.secret)
                self.tags[asked.tag] = self.image(matrix_of(asked))
                return Result(0, f"built {asked.tag}")
            case ["compose", "run", "--rm", service, *command]:
                one = compose()["services"][service]
                return self._container(one["image"], command or one["command"])
            case ["run", *rest]:
                asked = docker_run(rest)
                return self._container(asked.image, asked.command, [word for one in asked.v for word in ("-v", one)])
        raise AssertionError(words)

    def _container(self, tag: str, command: list[str], options: list[str] = ()) -> Result:
        """What a container does; the same again does the same, so it is asked once."""
        command = [*command, "--dry-run"] if command[0] == "train" else command
        key = (tag, *command, *options)
        if key not in self.done:
            self.done[key] = self.tags[tag].run(*command, options=tuple(options))
        return self.done[key]

    def _host(self, words: list[str]) -> Result:
        """A command of the host; if it comes to `docker`, what this does."""
        words = [sys.executable, str(ROOT / "cli.py"), *words[1:]] if words[0] == "./invokew" else words
        self.recorded.unlink(missing_ok=True)
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if name not in (*PROXIES, "PIP_CONFIG_FILE")}
        done = subprocess.run(
            words,
            cwd=ROOT if "checks.facts" in words or "image" in words else self.folder,
            env={**own, "PATH": path, "HOME": str(self.folder), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        found = self.recorded.read_text().split("\0")[:-1] if self.recorded.exists() else []
        if shown := SHOWN.match(done.stdout):
            typed = shlex.split(shown[1].replace("\\\n", " "))
            assert found in ([], typed) and done.returncode == 0, done.stderr  # nothing where it is only shown
            return self._docker(typed)
        if found[:1] == ["run"]:
            place = next(index for index, word in enumerate(found) if word in self.tags)
            return self._container(found[place], found[place + 1 :])
        return Result(done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr)


@pytest.fixture(scope="module")
def reader(tmp_path_factory, image_of) -> Reader:
    """With the images of the build block, each built once for all tests."""
    made = Reader(tmp_path_factory.mktemp("reader"), image_of)
    for command in chapter.blocks()["build"].commands:
        assert made.type(command).status == 0
    return made


@pytest.mark.parametrize("block", ["invoke", "proxy", "mirrors", "anywhere", "npu", "npu-facts", "compose"])
def test_the_chapter_is_followed(reader, block):
    for command in chapter.blocks()[block].commands:
        done = reader.type(command)
        judged = " doctor" in command or " lint " in command  # both say with 1 that there is something to see
        assert done.status in ((0, 1) if judged else (0,)), f"{command}\n{done.output[-4000:]}"
        assert "Traceback" not in done.output and (done.output.strip() or command.startswith("chmod ")), command
    if block == "npu-facts":
        assert json.loads((reader.folder / "facts.json").read_text())["format"]
        assert (reader.folder / "ascend-rl.sh").read_text().startswith("#!/bin/sh\n")
