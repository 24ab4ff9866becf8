"""Python and its packages: versions, and of the stack's also the place, the commit and what is wrong with them.

Nothing is imported: metadata and files are read, and the path finders are asked for top-level names, which runs none of
the packages' code.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

from checks.facts.reading import guarded, text_of

# Distributions of the stack and their modules.
STACK = {
    "torch": "torch",
    "torch-npu": "torch_npu",
    "verl": "verl",
    "vllm": "vllm",
    "vllm-ascend": "vllm_ascend",
    "mindspeed": "mindspeed",
    "megatron-core": "megatron",
    "tensordict": "tensordict",
    "transformers": "transformers",
    "ray": "ray",
    "mbridge": "mbridge",
    "torchvision": "torchvision",
    "triton": "triton",
    "triton-ascend": "triton",
    "flash-attn": "flash_attn",
    "verl-npu": "verl_npu",
}

TREES = ("verl", "vllm", "vllm_ascend", "mindspeed", "megatron")  # may lie on the path as checkouts


def python() -> dict:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "folder": os.getcwd(),
    }


def versions() -> dict[str, str]:
    """Installed distributions and their versions; of two of one name, the one that an import finds."""
    return {name: found[0].version for name, found in sorted(_distributions().items())}


def stack() -> dict:
    found = _distributions()
    return {
        "sources": {name: guarded(_source, found[name][0]) for name in STACK if name in found},
        "trees": {module: guarded(_tree, module) for module in TREES},
        "modules": {module: guarded(_places, module) for module in sorted(set(STACK.values()))},
        "duplicates": {name: _twice(group) for name, group in sorted(found.items()) if len(_twice(group)) > 1},
        "in_folder": sorted(name for name in set(STACK.values()) if _is_package(Path(name))),
        "megatron_training": guarded(_has_megatron_training),
        "mindspeed_adaptor": guarded(lambda: _file("mindspeed", "megatron_adaptor.py") is not None),
        "verl_loads_plugin": guarded(_verl_loads_plugin),
        "ascend_kernels": guarded(_ascend_kernels),
        "torch_cxx11_abi": guarded(_cxx11_abi),
    }


def _distributions() -> dict[str, list[importlib.metadata.Distribution]]:
    """Distributions by normalised name, in the order in which imports look. CANN's own on the path are left out."""
    found: dict[str, list[importlib.metadata.Distribution]] = {}
    path = [entry for entry in sys.path if not _is_cann_s(entry)]
    for distribution in importlib.metadata.distributions(path=path):
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append(distribution)
    return found


def _is_cann_s(entry: str) -> bool:
    home = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    return bool(home) and Path(entry).resolve().is_relative_to(Path(home).resolve())


def _twice(group: list[importlib.metadata.Distribution]) -> list[str]:
    """Versions and places of one name's distributions."""
    return sorted({f"{one.version} in {Path(str(one.locate_file(''))).resolve()}" for one in group})


def _source(distribution: importlib.metadata.Distribution) -> dict:
    """Where a distribution was installed from: index, git with its commit, or a folder with its commit."""
    found: dict = {"version": distribution.version, "from": "index"}
    url = json.loads(distribution.read_text("direct_url.json") or "{}")
    if "vcs_info" in url:
        found.update({"from": "git", "commit": url["vcs_info"].get("commit_id")})
    elif "dir_info" in url:
        folder = Path(unquote(urlparse(url["url"]).path))
        found.update({"from": "folder", "folder": str(folder), "exists": folder.is_dir()})
        found.update({"editable": bool(url["dir_info"].get("editable")), "commit": guarded(commit_of, folder)})
    return found


def _tree(module: str) -> dict:
    """The folder that a module is imported from, and the commit where that is a git checkout."""
    places = _places(module)
    if not places:
        return {"folder": None, "commit": None}
    folder = Path(places[0]).parent
    return {"folder": str(folder), "commit": commit_of(folder)}


def commit_of(folder: Path) -> str | None:
    """The commit that a git checkout stands at, read from its files."""
    git = folder / ".git"
    if git.is_file():
        git = folder / text_of(git).partition("gitdir:")[2].strip()
    if not git.is_dir():
        return None
    head = text_of(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head
    name = head.partition(":")[2].strip()
    common = git / text_of(git / "commondir").strip() if (git / "commondir").exists() else git
    if (common / name).exists():
        return text_of(common / name).strip()
    packed = text_of(common / "packed-refs") if (common / "packed-refs").exists() else ""
    match = re.search(rf"^([0-9a-f]{{40}}) {re.escape(name)}$", packed, re.MULTILINE)
    return match[1] if match else None


def _places(module: str) -> list[str]:
    """The folders of a top-level package, all of them where it is spread out; in the order of imports."""
    on_path = [str(Path(entry or ".") / module) for entry in sys.path if _is_package(Path(entry or ".") / module)]
    spec = importlib.util.find_spec(module)
    found = on_path + list((spec and spec.submodule_search_locations) or ())
    return list(dict.fromkeys(str(Path(one).resolve()) for one in found if Path(one).is_dir()))


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file() or any((folder / part).is_dir() for part in ("core", "training"))


def _file(module: str, name: str) -> Path | None:
    return next((path for path in (Path(place) / name for place in _places(module)) if path.exists()), None)


def _has_megatron_training() -> bool:
    return _file("megatron", "training") is not None


def _verl_loads_plugin() -> bool:
    """Whether verl's __init__ imports MindSpeed-RL's plugin."""
    file = _file("verl", "__init__.py")
    return bool(file and re.search(r"^\s*(?:import|from)\s+verl_npu\b", text_of(file), re.MULTILINE))


def _ascend_kernels() -> dict:
    """vllm-ascend's compiled parts: custom operators, and the allocator of sleep mode."""
    places = _places("vllm_ascend")
    built = [path.name for place in places for path in Path(place).glob("vllm_ascend_C*.so")]
    info = _file("vllm_ascend", "_build_info.py")
    sleep = re.search(r"__sleep_mode_enabled__\s*=\s*(True|False)", text_of(info)) if info else None
    return {"compiled": built, "sleep_mode": sleep[1] == "True" if sleep else None}


def _cxx11_abi() -> int | None:
    """The C++ ABI of the installed torch, by the symbols of its smallest library."""
    file = _file("torch", "lib/libc10.so")
    if file is None:
        return None
    return int(b"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx11" in file.read_bytes())
