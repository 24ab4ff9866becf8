"""Every command of the chapter on containers is one that the engines, the Dockerfile or the command line take."""

import argparse
import importlib.util
import os
import re
import shlex

import pytest
import yaml
from invoke.parser import Parser

import matrix as matrices
import tasks
from image import build
from recipes import compose
from tests.image import chapter
from tests.image.chapter import ROOT
from tests.image.test_run import interpolated

DOCKERFILE = (ROOT / "Dockerfile").read_text()
DECLARED = dict(re.findall(r"^ARG (\w+)=?(.*)$", DOCKERFILE, re.MULTILINE))
COMMANDS = [(block.name, command) for block in chapter.blocks().values() for command in block.commands]


class Options(argparse.ArgumentParser):
    def error(self, message):
        raise AssertionError(message)


def docker_build(words: list[str]) -> argparse.Namespace:
    options = Options(allow_abbrev=False)
    for name in ("--build-arg", "--secret"):
        options.add_argument(name, action="append", default=[])
    for name in ("--target", "--file", "--progress", "--network"):
        options.add_argument(name)
    options.add_argument("-t", "--tag", required=True)
    options.add_argument("context")
    return options.parse_args(words)


def docker_run(words: list[str]) -> argparse.Namespace:
    options = Options(allow_abbrev=False)
    options.add_argument("--rm", action="store_true", required=True)
    options.add_argument("--shm-size")
    options.add_argument("-v", action="append", default=[])
    options.add_argument("image")
    options.add_argument("command", nargs=argparse.REMAINDER)
    return options.parse_args(words)


def matrix_of(asked: argparse.Namespace) -> str:
    """The matrix whose image a build makes: that of its target, else of its argument, else the Dockerfile's own."""
    given = dict(one.split("=", 1) for one in asked.build_arg if "=" in one)
    return "cpu" if asked.target == "cpu" else given.get("MATRIX", DECLARED["MATRIX"])


def check_build(words: list[str]) -> None:
    asked = docker_build(words)
    given = dict((*one.split("=", 1), None)[:2] for one in asked.build_arg)
    assert given.keys() <= DECLARED.keys() | set(build.PROXIES)
    assert {name for name, value in given.items() if value is None} <= set(build.PROXIES)
    # Debian's and Ubuntu's archives are at http://, all else is at https://.
    proxies = {"http_proxy", "https_proxy", "no_proxy"}
    assert proxies & given.keys() in (set(), proxies)
    assert matrix_of(asked) in matrices.names()
    assert asked.target is None or re.search(rf"^FROM \S+ AS {asked.target}$", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)[-1] == "final"
    for secret in asked.secret:
        name, source = re.fullmatch(r"id=(\w+),src=(\S+)", secret).groups()
        assert f"type=secret,id={name}" in DOCKERFILE and source.startswith(("/", "$HOME/"))
    assert asked.tag == f"ascend-rl:{matrix_of(asked)}" and asked.context == "."
    assert asked.file in (None, "Dockerfile")


def check_verb(words: list[str]) -> None:
    """A verb of the command line with its options; its matrix and recipe exist."""
    (context,) = Parser(contexts=tasks.namespace.to_contexts()).parse_argv(words)
    given = {name: argument.value for name, argument in context.args.items()}
    assert given.get("matrix") in (None, *matrices.names())
    if given.get("recipe"):
        compose.find(given["recipe"])
    if words[0] == "image":
        matrix = matrices.load(given["matrix"] or build.DEFAULT)
        build.build_command(
            build.Asked(matrix.name, base=given["base"], mirrors=given["mirror"], tag=given["tag"]),
            matrix,
            "docker",
            {},
        )


def check_inside(words: list[str]) -> None:
    """What a container is told to do: a verb, or a program."""
    if words[0] in tasks.namespace.task_names:
        check_verb(words)
    else:
        assert words[0] == "python" and compile(words[2], "README", "exec")


def check_run(words: list[str]) -> None:
    asked = docker_run(words)
    assert asked.image in {command.split("-t ")[1].split()[0] for _, command in COMMANDS if " -t " in command}
    check_inside(asked.command)


def check_service(words: list[str]) -> None:
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert words[:2] == ["run", "--rm"] and words[2] in found
    check_inside(words[3:] or [interpolated(word, {}) for word in found[words[2]]["command"]])


def check_script(words: list[str]) -> None:
    assert words[0] == "ascend-rl.sh"
    check_inside(words[1:])


def check_module(words: list[str]) -> None:
    assert words[0] == "-m" and importlib.util.find_spec(words[1] + ".__main__")


def check_readable(words: list[str]) -> None:
    assert words[0] == "a+r" and f" > {words[1]}" in " ".join(command for _, command in COMMANDS)


KINDS = {
    ("docker", "build"): check_build,
    ("docker", "run"): check_run,
    ("docker", "compose"): check_service,
    ("./invokew",): check_verb,
    ("sh",): check_script,
    ("python3",): check_module,
    ("chmod",): check_readable,
}


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=[f"{block}-{command[:40]}" for block, command in COMMANDS])
def test_a_command_is_right(block, command):
    words, _, file = command.partition(" > ")
    assert file in ("", "ascend-rl.sh", "facts.json")
    words = shlex.split(words)
    (kind,) = [kind for kind in KINDS if tuple(words[: len(kind)]) == kind]
    KINDS[kind](words[len(kind) :])


def test_the_chapter_has_what_a_reader_needs():
    wanted = ["build", "invoke", "proxy", "mirrors", "anywhere", "npu", "npu-facts", "compose"]
    assert list(chapter.blocks()) == wanted
    assert chapter.text().count("```") == 2 * len(wanted), "a block of commands without its name above it"
    assert {block for block, _ in COMMANDS} == set(wanted)


def test_what_is_mounted_can_be_read_by_the_image_s_user():
    """What root writes on a host may be root's alone."""
    mounted = {(block, name) for block, command in COMMANDS for name in re.findall(r"-v \$PWD/([^:]+):", command)}
    assert mounted and all((block, f"chmod a+r {name}") in COMMANDS for block, name in mounted)


def test_both_languages_have_the_same_commands():
    english, chinese = (chapter.blocks(name) for name in chapter.HEADINGS)
    assert english == chinese


@pytest.mark.parametrize("readme", chapter.HEADINGS)
def test_what_the_chapter_names_is_there(readme):
    """Files of this repository, variables of compose.yaml, and places in the image."""
    from image import run

    text = chapter.text(readme)
    for name in re.findall(r"`([\w./-]+\.(?:lock|yaml|toml|json))`", text):
        assert name.startswith("/opt/") or (ROOT / name).is_file(), name
    assert "/opt/ascend-rl/manifest.json" in text
    for variable, default, place in run.VOLUMES:
        assert f"`{variable}`" in text and f"`{place}`" in text and f"`{default.format(matrix='MATRIX')}`" in text
    assert not re.search(r"--privileged(?!`[.。；;])", text)


def test_no_command_has_a_host_s_own_name():
    for _, command in COMMANDS:
        for address in re.findall(r"(?:https?://|--base )([\w.-]+)", command):
            assert address.endswith(".example.com"), command
        assert os.fspath(ROOT) not in command
