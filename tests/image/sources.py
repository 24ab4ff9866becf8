"""Stand-ins for the upstream repositories: commits of ours, made from what the package index offers.

The same packages give the same commits. verl and vllm-ascend are the cpu matrix's releases, vLLM is its source archive,
Megatron-LM is megatron-core with a `megatron.training` of ours; MindSpeed is ours and has what the patches change.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path

import environment

ROOT = Path(__file__).resolve().parents[2]
MINDSPEED = Path(__file__).with_name("mindspeed")
DATE = "2025-10-31T00:00:00Z"
PACKAGES = ("verl", "vllm", "vllm-ascend", "megatron-core")


def packages(folder: Path) -> dict[str, Path]:
    """vLLM's source archive and three wheels, as the cpu matrix's lock has them and checked against its hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    locked = {one.name: one.text for one in environment.entries((ROOT / "requirements-cpu.lock").read_text())}
    for name in PACKAGES:
        if _file(folder, name) is None:
            wanted = folder / f"{name}.txt"
            wanted.write_text(_archive(locked[name]) if name == "vllm" else locked[name])
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
            command += ["--require-hashes", "--dest", str(folder), "-r", str(wanted)]
            subprocess.run(command, env=os.environ | environment.BUILD_ENVIRONMENT, check=True, timeout=600)
    return {name: _file(folder, name) for name in PACKAGES}


def _archive(locked: str) -> str:
    """vLLM's archive by address: built, its version ends in +empty, which pip refuses for what it chose itself."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-deps", "--no-binary", "vllm"]
    command += ["--format", "pylock.toml", "--generate-hashes"]
    variables = environment.uv_environment(sys.executable)
    done = subprocess.run(
        command, input=locked.split()[0], env=variables, check=True, capture_output=True, text=True, timeout=300
    )
    (package,) = tomllib.loads(done.stdout)["packages"]
    return locked.replace(locked.split()[0], f"vllm @ {package['sdist']['url']}")


def trees(matrix: str, files: dict[str, Path], folder: Path) -> Path:
    """Checkouts of a matrix's stand-ins side by side, under the names that `patches` knows."""
    _unpack_wheel(files["verl"], folder / "verl")
    _unpack_wheel(files["vllm-ascend"], folder / "vllm-ascend")
    _unpack_wheel(files["megatron-core"], folder / "Megatron-LM")
    _unpack_archive(files["vllm"], folder / "vllm")
    shutil.copytree(MINDSPEED, folder / "MindSpeed")
    (folder / "Megatron-LM/megatron/training").mkdir()
    (folder / "Megatron-LM/megatron/training/__init__.py").write_text('"""Stand-in for Megatron\'s training."""\n')
    for path in folder.rglob("*.so"):
        path.unlink()  # compiled for CANN, or made again from the sources
    for change in CHANGES.get(matrix, ()):
        change(folder)
    return folder


def commit(tree: Path, repository: Path) -> str:
    """Makes a bare repository with the tree as its one commit; the commit's name."""
    who = {"NAME": "Stand-in", "EMAIL": "stand-in@example.org", "DATE": DATE}
    variables = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    variables |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), "--work-tree", str(tree), "-c", "core.bare=false", *arguments]
        done = subprocess.run(command, env=os.environ | variables, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(repository)], check=True)
    git("add", "--all", "--force", ".")
    git("commit", "--quiet", "--message=Stand-in")
    return git("rev-parse", "HEAD")


def _file(folder: Path, name: str) -> Path | None:
    return next(folder.glob(f"{name.replace('-', '_')}-[0-9]*"), None)


def _unpack_wheel(wheel: Path, folder: Path) -> None:
    """A source tree that builds into the wheel's modules: the wheel's own metadata becomes a pyproject.toml."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (described,) = folder.glob("*.dist-info")
    metadata = Parser().parsestr((described / "METADATA").read_text())
    points = described / "entry_points.txt"
    (folder / "pyproject.toml").write_text(_pyproject(metadata, points.read_text() if points.is_file() else ""))
    shutil.rmtree(described)


def _pyproject(metadata: Message, points: str) -> str:
    requirements = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    requirements = [line for line in requirements if not line.startswith("torch")]  # as the context: another torch
    lines = ["[build-system]", 'requires = ["setuptools"]', 'build-backend = "setuptools.build_meta"', "[project]"]
    lines.append(f'name = "{metadata["Name"]}"')
    # vllm-ascend takes its version from git's tags, or from what the image's build says in their place.
    tagged = metadata["Name"] == "vllm-ascend"
    lines.append('dynamic = ["version"]' if tagged else f'version = "{metadata["Version"]}"')
    lines += ["dependencies = [", *(f"  {line!r}," for line in requirements), "]"]
    for group, entries in re.findall(r"^\[(.+)\]\n((?:.+\n?)*)", points, re.MULTILINE):
        lines.append(f'[project.entry-points."{group}"]')
        lines += [re.sub(r"\s*=\s*(.*)", r" = '\1'", entry) for entry in entries.splitlines() if entry.strip()]
    # As upstream's setup.py: verl's brings its scripts along, Megatron's leaves its training out.
    name = metadata["Name"]
    included = {"verl": ["verl*", "scripts*"], "megatron-core": ["megatron.core*"]}.get(
        name, [name.replace("-", "_") + "*"]
    )
    lines += ["[tool.setuptools.packages.find]", f"include = {included}"]
    lines += ["[tool.setuptools_scm]"] if tagged else []
    lines += ["[tool.setuptools.package-data]", '"*" = ["**"]']
    return "\n".join(lines) + "\n"


def _unpack_archive(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (inner,) = folder.iterdir()
    for path in inner.iterdir():
        path.rename(folder / path.name)
    inner.rmdir()


# What the commercial matrix's verl has and verl 0.6.0 has no more: names that transformers had up to 4.55.0.
_NOW = "from verl.utils.attention_utils import index_first_axis"
_THEN = "from transformers.integrations.npu_flash_attention import index_first_axis"
_USERS = ("workers/actor/dp_actor", "workers/critic/dp_critic", "trainer/fsdp_sft_trainer", "workers/fsdp_workers")


def _vanished_names(folder: Path) -> None:
    package = folder / "verl/verl"
    for name in _USERS:
        path = package / f"{name}.py"
        path.write_text(path.read_text().replace(_NOW, _THEN))
    (package / "workers/engine/fsdp/engine_impl.py").write_text(f"{_THEN}, pad_input, rearrange, unpad_input\n")


CHANGES: dict[str, tuple[Callable[[Path], None], ...]] = {"commercial": (_vanished_names,)}
