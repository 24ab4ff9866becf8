"""The command and the environment of a run: what Hydra and a shell make of them, and what is kept secret."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from checks import secrets
from errors import UserError
from recipes import command, train
from recipes.compose import compose, setting
from recipes.order import Order

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n/$"), min_size=1, max_size=20)


@given(NAMES)
def test_a_path_of_any_name_reaches_verl_whole(name):
    path = f"/runs/{name}"
    override = OverridesParser.create().parse_override(setting("++hydra.run.dir", path))
    assert str(override.value()) == path


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z_]{1,8}", fullmatch=True), NAMES, max_size=4), NAMES)
def test_a_shell_runs_the_script_as_it_is_meant(variables, argument):
    given = command.Command(["/bin/echo", argument], variables, Path("/tmp"))
    words = shlex.split(given.script().replace(" \\\n", " "))  # shlex does not join lines as a shell does
    shown = secrets.redacted(variables)
    assert words[:2] == ["cd", "/tmp"] and words[-2:] == ["/bin/echo", argument]
    for name, value in variables.items():
        assert (f"{name}={value}" in words) == (shown[name] == value)


def test_secrets_reach_the_run_from_the_environment_of_the_shell():
    secrets = {"HF_TOKEN": "a 'b' $c", "HTTPS_PROXY": "http://me:pass@proxy:3128", "TOKENIZERS_PARALLELISM": "false"}
    script = command.Command(["sh", "-c", 'echo "$HF_TOKEN|$HTTPS_PROXY|$TOKENIZERS_PARALLELISM"'], secrets, Path("/"))
    assert "a 'b'" not in script.script() and "me:pass" not in script.script()
    done = subprocess.run(["sh"], input=script.script(), env={**os.environ, **secrets}, capture_output=True, text=True)
    assert done.stdout == "a 'b' $c|http://me:pass@proxy:3128|false\n"
    done = subprocess.run(
        ["sh"], input=script.script(), env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert done.returncode and "HF_TOKEN: a secret" in done.stderr


def test_the_recipes_environment_reaches_the_run(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("RAY_DEDUP_LOGS", "1")
    config = compose(str(recipe), ["+launch.env.HCCL_EXEC_TIMEOUT=3600", "trainer.logger=[console,tensorboard]"]).config
    site = tmp_path / "site"
    added = command.added_environment(config, site, tmp_path / "run", tmp_path / "scratch")
    whole = command.whole(added)
    assert whole["HCCL_EXEC_TIMEOUT"] == "3600" and whole["PATH"] == os.environ["PATH"]
    assert "RAY_ADDRESS" not in whole, "the run has a Ray of its own"
    assert "PYTHONDONTWRITEBYTECODE" not in whole, "its processes compile the same modules once"
    assert whole["RAY_DEDUP_LOGS"] == "1", "what the user says stays"
    assert whole["PYTHONPATH"].split(":")[0] == str(site)
    assert whole["NPU_EMULATOR_TRACE"] == str(tmp_path / "run" / "trace")
    assert whole["TENSORBOARD_DIR"] == str(tmp_path / "run" / "tensorboard")
    real = command.added_environment(config, None, tmp_path / "run", tmp_path / "scratch")
    assert "NPU_EMULATOR_TRACE" not in real and str(site) not in real["PYTHONPATH"]


@pytest.mark.parametrize("value", [True, None, [1]])
def test_a_switch_that_yaml_read_as_something_else_is_refused(value):
    config = OmegaConf.create({"launch": {"env": {"NPU_EMULATOR_DEFER": value}}})
    with pytest.raises(UserError, match=r"launch.env.NPU_EMULATOR_DEFER: expected text or a number.*--set"):
        command.recipe_environment(config)


@pytest.mark.parametrize("given", [{"A B": 1}, {"A=B": 1}, {"": 1}, {1: 1}, {"A": "x\0y"}])
def test_a_variable_that_no_environment_can_hold_is_refused(given):
    with pytest.raises(UserError, match=r"expected the name of an environment variable"):
        command.recipe_environment(OmegaConf.create({"launch": {"env": given}}))


@pytest.mark.parametrize(
    ("order", "settings", "part"),
    [
        ({"root": "/src"}, [], "expected --rehearse beside it"),
        ({"nodes": 2}, [], "expected one node, found 2"),
        ({}, ["launch.nodes=8"], "expected one node, found 8"),
        ({}, ["trainer.nnodes=8"], "trainer.nnodes 8"),
        ({"matrix": "gpu"}, [], "gpu"),
    ],
)
def test_what_is_not_there_is_refused_in_words(recipe, tmp_path, order, settings, part):
    with pytest.raises(UserError) as caught:
        train.train(Order(str(recipe), settings=settings, run_dir=str(tmp_path / "run"), **order))
    assert caught.value.code == 2 and part in str(caught.value)
    assert not (tmp_path / "run").exists()
