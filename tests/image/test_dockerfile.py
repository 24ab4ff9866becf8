"""What the Dockerfile promises, read without building it."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parents[2]
FINAL = ("cpu", "final")
MATRIX = tomllib.loads((ROOT / "matrix.toml").read_text())


@pytest.fixture(scope="module")
def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions by stage, in order: (instruction, value). What stands before the first stage is under ""."""
    found: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for one in DockerfileParser(str(ROOT / "Dockerfile")).structure:
        if one["instruction"] == "FROM":
            name = re.split(r"\s+as\s+", one["value"], flags=re.IGNORECASE)[1]
            found[name] = []
        if one["instruction"] != "COMMENT":
            found[name].append((one["instruction"], one["value"]))
    return found


def values(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [value for name, value in stage if name == instruction]


def names(lines: list[str]) -> set[str]:
    """The names of ARG and ENV lines."""
    return {word.partition("=")[0] for line in lines for word in line.split() if re.match(r"\w+(=|$)", word)}


def runs(stages) -> Iterator[str]:
    for stage in stages.values():
        yield from values(stage, "RUN")


def test_hadolint_finds_nothing():
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    done = subprocess.run([tool, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_stages_are_those_that_are_built_and_documented(stages):
    assert [*stages] == ["", "cpu-base", "cpu-build", "cpu", "base", "src", "build", "final"]
    assert values(stages["final"], "FROM") == ["base AS final"]  # the default: the last one


def test_the_default_base_is_the_matrix_s(stages):
    base = MATRIX["performance"]["components"]["base"]
    defaults = dict(value.split("=", 1) for value in values(stages[""], "ARG"))
    assert defaults["BASE_IMAGE"] == f"{base['repository'].removeprefix('https://')}:{base['ref']}"


def test_what_a_builder_may_choose(stages):
    git = [name for name, one in MATRIX["performance"]["components"].items() if one["install"] == "git"]
    mirrors = {f"{name.upper().replace('-', '_')}_REPOSITORY" for name in git}
    assert mirrors | {"MATRIX"} <= names(values(stages["src"], "ARG"))
    assert {"MATRIX", "SOC_VERSION", "COMPILE_CUSTOM_KERNELS", "MAX_JOBS"} <= names(values(stages["build"], "ARG"))
    assert [value for value in values(stages["build"], "ARG") if value.startswith("MATRIX")] == ["MATRIX=performance"]


def test_no_version_is_written_but_the_bases(stages):
    """Versions are in matrix.toml; Python's is part of a program's name where a base has several."""
    allowed = r"python3\.11|Apache-2\.0"
    bases = values(stages[""], "ARG")
    written = [value for stage in stages.values() for _, value in stage if value not in bases]
    assert [value for value in written if re.search(r"\d\.\d|\b[0-9a-f]{12,}\b", re.sub(allowed, "", value))] == []


def test_nothing_is_fetched_by_add(stages):
    for stage in stages.values():
        assert values(stage, "ADD") == []


@pytest.mark.parametrize("name", FINAL)
def test_an_image_says_what_it_is_and_how_it_is_run(stages, name):
    stage = stages[name]
    assert values(stage, "USER")[-1:] == ["1000:1000"]
    assert values(stage, "ENTRYPOINT") == ['["/opt/ascend-rl/project/image/entrypoint.sh"]']
    (check,) = values(stage, "HEALTHCHECK")
    assert "CMD [" in check
    labels = " ".join(values(stage, "LABEL"))
    for key in ("title", "description", "licenses", "base.name", "revision"):
        assert f"org.opencontainers.image.{key}=" in labels
    assert "ascend-rl.matrix=" in labels


def test_secrets_reach_only_the_steps_that_use_the_network(stages):
    """And are never build arguments or variables, which stay."""
    fetching = ("image.steps.sources", "image.steps.packages", "image.steps.cpu")
    for line in runs(stages):
        assert ("type=secret" in line) == any(step in line for step in fetching), line
    kept = [name for stage in stages.values() for key in ("ARG", "ENV") for name in names(values(stage, key))]
    assert not [name for name in kept if re.search("TOKEN|PASSWORD|SECRET|INDEX|NETRC", name)]


def test_old_builders_understand_it():
    """docker.io's BuildKit of 20.10 and buildah 1.28: no other syntax is asked for, no here-documents."""
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax\s*=|<<-?['\"]?\w+|--mount=type=bind|COPY --(link|parents)", text, re.MULTILINE)


def test_the_context_has_only_what_is_named():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    named = {line.removeprefix("!").strip("/") for line in lines if line.startswith("!")}
    assert not named & {".git", "tests", "runs", "assets", ".venv"}
