"""Recorded facts, changed here and there, and a case made of them."""

import copy
import json
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

import matrix as matrices
from checks.doctor.check import Case, PatchState
from checks.doctor.document import checked
from recipes import doctor, keys
from recipes.compose import compose

FOLDER = Path(__file__).resolve().parent.parent / "machines"
RECIPE = "qwen3-235b-30k"
GONE = object()  # takes a fact away


@cache
def _text(name: str) -> str:
    return (FOLDER / f"{name}.json").read_text(encoding="utf-8")


def document(name: str, change: dict | None = None) -> dict:
    """A recorded machine's facts, with other values at some places (`npu/smi/chips/0/health`)."""
    found = json.loads(_text(name))
    for path, value in (change or {}).items():
        *parents, last = path.split("/")
        node = found
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        key = int(last) if isinstance(node, list) else last
        if value is GONE:
            del node[key]
        else:
            node[key] = copy.deepcopy(value)
    return found


load = cache(matrices.load)


@cache
def settings(matrix: str) -> dict:
    config = compose(RECIPE, matrix=matrix).config
    return keys.flattened(OmegaConf.to_container(config, resolve=True))


@cache
def host_gib(matrix: str) -> float:
    return doctor.host_gib(compose(RECIPE, matrix=matrix), matrix)


APPLIED = (PatchState("verl/rollout-seeds", "applied", "F1"), PatchState("vllm-ascend/moe-layout", "not needed", "F10"))


def case(
    name: str, change: dict | None = None, matrix: str = "performance", values: dict | None = None, patches=APPLIED
):
    """A machine judged for the tuned recipe; `values` are the recipe's, changed (None: no recipe)."""
    recipe = "commercial" if matrix == "commercial" else "performance"
    chosen = None if values is None else {**settings(recipe), **values}
    facts = checked(document(name, change), name)
    return Case(facts, load(matrix), chosen, patches, *((RECIPE, host_gib(recipe)) if chosen else ()))
