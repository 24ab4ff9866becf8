"""The stand-in context: the checkout as `docker build` gets it, with what can be had without CANN and GitHub.

matrix.toml names the stand-in commits and the cpu matrix's torch; locks, fingerprints and the list of meant conflicts
follow. Everything else, and so every step and every check, is the checkout's own.
"""

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lock
import matrix as matrices
from tests.image import sources

ROOT = sources.ROOT
MATRICES = ("performance", "commercial")
# Component to the folder of its stand-in.
FOLDERS = {
    "verl": "verl",
    "vllm": "vllm",
    "vllm-ascend": "vllm-ascend",
    "mindspeed": "MindSpeed",
    "megatron-lm": "Megatron-LM",
}
# Requirements of vLLM 0.11.0 that the commercial matrix does not meet, whose commit is older.
MEANT = ("compressed-tensors", "lm-format-enforcer", "outlines-core", "xgrammar")


def make(folder: Path, commits: dict[str, dict[str, str]], trees: Path) -> Path:
    """Makes it in a new folder. `commits`: matrix to component to commit; `trees`: checkouts, a folder a matrix."""
    copy(folder)
    change(folder, commits)
    subprocess.run([sys.executable, "-m", "patches.pins", trees], cwd=folder, check=True, timeout=600)
    return folder


def change(folder: Path, commits: dict[str, dict[str, str]]) -> None:
    """Writes the stand-in versions into matrix.toml, the locks and the list of meant conflicts."""
    table = folder / "matrix.toml"
    text = table.read_text()
    for name, pinned in commits.items():
        before = matrices.load(name, ROOT / "matrix.toml").components
        for component, commit in pinned.items():
            _same_keys(folder, component, before[component].commit, commit)
            if f"[{name}.components.{component}]" in text:  # else it is that of the matrix which this one extends
                text = _set(text, f"{name}.components.{component}", "commit", commit)
    # vLLM's is that of the source archive: vllm-ascend decides by it what it calls.
    vllm = matrices.load("cpu", ROOT / "matrix.toml").component("vllm").version
    text = _set(text, "commercial.components.vllm", "version", vllm)
    table.write_text(_other_torch(text))
    for name in MATRICES:
        _follow(folder, name)
    row = (
        '\n[[allowed]]\npackage = "vllm"\nrequires = "{}"\nmatrices = ["commercial"]\nwhy = "another vLLM stands in"\n'
    )
    with (folder / "image/contents.toml").open("a") as contents:
        contents.writelines(row.format(name) for name in MEANT)


def copy(folder: Path) -> None:
    """What git has of the checkout, with edits that are not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():  # one that was removed is still listed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def _set(text: str, table: str, key: str, value: str) -> str:
    """Gives a key of a table, which must be there, another value."""
    changed, count = re.subn(
        rf'(^\[{re.escape(table)}\]$(?:\n(?!\[).*)*?\n{key} = )"[^"]*"', rf'\g<1>"{value}"', text, flags=re.MULTILINE
    )
    assert count == 1, f"matrix.toml: no {table}.{key}"
    return changed


def _same_keys(folder: Path, component: str, old: str, new: str) -> None:
    """The keys that recipes may set are those of the commit that the stand-in stands for."""
    for known in (folder / "recipes/schema/data").glob(f"{component}-{old[:7]}*.json"):
        shutil.copy(known, known.with_name(known.name.replace(old[:7], new[:7])))


def _other_torch(text: str) -> str:
    """The cpu matrix's torch for both; no torchvision, of which the index has no build for it."""
    cpu = matrices.load("cpu")
    build, machine = cpu.component("torch").version, platform.machine()
    text = _set(text, "performance.components.torch", "version", build.partition("+")[0])
    text = re.sub(
        r"^\[performance\.(components\.torchvision|lock\.elsewhere\..*)\]\n(?:(?!\[).*\n)*", "", text, flags=re.M
    )
    text = re.sub(r"^torchvision = .*\n", "", text, count=1, flags=re.MULTILINE)  # the override
    text = text.replace("[performance.lock.exclude]\n", '[performance.lock.exclude]\ntorchvision = "stand-in"\n')
    digests = [str(one) for one in cpu.lock.torch[machine]]
    elsewhere = f"[performance.lock.elsewhere.{machine}.torch]\n"
    elsewhere += f'version = "{build}"\nsha256 = {digests}\nsource = "the cpu matrix"\n\n'
    return text.replace("[commercial]\n", f"{elsewhere}[commercial]\n", 1)


def _follow(folder: Path, name: str) -> None:
    """A lock with the lines that matrix.toml says now."""
    chosen = matrices.load(name, folder / "matrix.toml")
    build = chosen.lock.elsewhere[platform.machine()]["torch"]
    path = folder / lock.lock_file(name).name
    head, _, body = path.read_text().partition("\n\n")
    head = re.sub(r"sha256:\w+", f"sha256:{lock.digest(chosen)}", head)
    body = re.sub(r"^(torch|torchvision)==.*\n(?: .*\n)*", "", body, flags=re.MULTILINE)
    hashes = "".join(f" \\\n    --hash=sha256:{one}" for one in build.sha256)
    path.write_text(f"{head}\n\n{body}torch=={build.version}{hashes}\n")
