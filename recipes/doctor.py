"""`invoke doctor`: what the command line asks, put together and judged by `checks.doctor`.

Here is what needs the recipe and the patches; the checks themselves look at a case and at nothing else.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

import matrix as matrices
from checks import doctor, facts
from checks.doctor import document, report, verdict
from checks.doctor.check import CPU, Case, PatchState
from checks.doctor.document import Facts
from checks.doctor.verdict import Result
from checks.words import Text, check_language, say
from errors import UserError, unwritable
from recipes import emulated, keys, rundir
from recipes.compose import DEFAULT, Recipe, compose, verl_defaults
from recipes.lint import memory
from recipes.lint.facts import gather

SECONDS = 15.0  # for vendor tools that are slow; where none hangs the collection takes less than two
PATHS = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.actor.megatron.dist_checkpointing_path",
    "data.train_files",
    "trainer.default_local_dir",
)
HEADING = Text("{facts} · matrix {matrix}{recipe}", "{facts} · 版本矩阵 {matrix}{recipe}")
NO_NPU = Text(
    "no NPU on this machine, so judged by the matrix cpu, for emulated ones; --matrix performance asks for real NPUs",
    "本机没有 NPU，按模拟 NPU 的版本矩阵 cpu 检查；检查真实 NPU 环境请用 --matrix performance",
)
IMAGE_NO_NPU = Text(
    "no NPU on this machine, so the image is judged for emulated ones; --matrix {matrix} asks for real NPUs",
    "本机没有 NPU，按模拟 NPU 检查镜像；检查真实 NPU 环境请用 --matrix {matrix}",
)
HERE = Text("this machine", "本机")


@dataclass(frozen=True)
class Asked:
    """The arguments of the command."""

    recipe: str = ""
    matrix: str | None = None
    facts: Sequence[str] = ()
    save: str | None = None
    cluster: bool = False
    deep: bool = False
    as_json: bool = False
    language: str = "en"


@dataclass(frozen=True)
class Judged:
    """One machine's verdict. `emulated`: on what does not need an NPU."""

    name: str
    case: Case
    results: list[Result]
    emulated: bool


def run(asked: Asked) -> int:
    """Collects, judges, prints; 1 where something must be fixed. UserError for bad arguments and unreadable files."""
    check_language(asked.language)
    if asked.cluster and asked.deep:
        raise UserError("--deep: expected no --cluster beside it: it is about this machine's devices")
    if asked.facts and (asked.cluster or asked.deep or asked.save):
        raise UserError("--facts: expected no --cluster, --deep or --save beside it, which are about this machine")
    recipe = compose(asked.recipe, matrix=asked.matrix) if asked.recipe else None
    settings = keys.flattened(OmegaConf.to_container(recipe.config, resolve=True)) if recipe else None
    documents = _documents(asked, settings)
    if asked.save:
        _save(asked.save, documents)
    judged = [_judge(name, one, asked, recipe, settings) for name, one in documents.items()]
    if asked.deep:
        from checks.doctor import deep

        for one in judged:
            one.results.extend(deep.results(one.case.matrix))
    between = []
    if asked.cluster or len(judged) > 1:
        from checks.doctor import cluster

        between = cluster.compare({one.name: one.case for one in judged})
    if asked.as_json:
        _print_json(judged, between, asked.language)
    else:
        _show(judged, between, asked)
    return int(any(verdict.failed(one.results) for one in judged) or verdict.failed(between))


def named_paths(settings: Mapping[str, object] | None) -> dict[str, str]:
    """The recipe's paths by key, those on this machine's file systems."""
    found = {}
    for key in PATHS:
        value = (settings or {}).get(key)
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, str) and first and "://" not in first:
            found[key] = os.path.abspath(os.path.expanduser(first))
    return found


def _documents(asked: Asked, settings: Mapping[str, object] | None) -> dict[str, Facts]:
    """Facts by the name of the machine: of files, of a cluster's nodes, or of this machine."""
    if asked.facts:
        return {path: document.read(path) for path in asked.facts}
    if asked.cluster:
        from checks.doctor import cluster

        return cluster.collect(named_paths(settings), os.environ.get("RAY_ADDRESS"))
    return {say(HERE, asked.language): Facts(facts.collect(named_paths(settings), SECONDS))}


def _judge(name: str, one: Facts, asked: Asked, recipe: Recipe | None, settings: Mapping | None) -> Judged:
    matrix = matrices.load(_matrix(asked, recipe, one))
    on_emulated = matrix.name == CPU or (_in_image(one) and not asked.matrix and _is_for_emulated(recipe, one))
    elsewhere = asked.facts or asked.cluster or matrix.name == CPU or not (has_npu(one) or _in_image(one))
    patches = None if elsewhere else patch_states(matrix.name)
    case = Case(one, matrix, settings, patches, asked.recipe, host_gib(recipe, matrix.name) if recipe else None)
    silent = not one.has("format")  # a node that did not answer, which cluster.answered reports
    checks = [check for check in doctor.CHECKS if not on_emulated or CPU in check.matrices]
    return Judged(name, case, [] if silent else verdict.judge(case, checks), on_emulated)


def _in_image(one: Facts) -> bool:
    """Whether these are the facts of a container of this project's image."""
    return one.has("image/matrix")


def _is_for_emulated(recipe: Recipe | None, one: Facts) -> bool:
    """Whether emulated NPUs are meant: the recipe's, or without one those of a machine that has no others."""
    return emulated.is_emulated(recipe.config) if recipe else not has_npu(one)


def host_gib(recipe: Recipe, matrix: str) -> float:
    """GiB of host memory that the recipe offloads to on a node, as the linter counts them."""
    return sum(memory.host_terms(gather(recipe.config, matrix, verl_defaults(recipe.matrix))).values())


def _matrix(asked: Asked, recipe: Recipe | None, one: Facts) -> str:
    """The one that was named, else the recipe's, else the image's, else that of what the machine has."""
    if asked.matrix:
        return asked.matrix
    if recipe and not emulated.is_emulated(recipe.config):
        return recipe.matrix
    if _in_image(one):
        return one.text("image/matrix")
    return DEFAULT if has_npu(one) and not recipe else CPU


def has_npu(one: Facts) -> bool:
    """Whether a machine shows any sign of an NPU, or does not let that be known."""
    present = [check for check in doctor.CHECKS if check.id == "npu.present"]
    return not verdict.failed(verdict.judge(Case(one, matrices.load(DEFAULT)), present))


def patch_states(matrix: str) -> list[PatchState] | None:
    """The states of all patches on this environment's packages; None where they cannot be told."""
    from patches import catalogue, engine, places

    try:
        judged = engine.judge(catalogue.patches(matrix), places.place(None))
    except UserError:
        return None
    return [PatchState(one.patch.id, one.state, one.patch.problem, one.reason) for one in judged.verdicts]


def _save(path: str, documents: Mapping[str, Facts]) -> None:
    """Writes the facts; of several machines one file each, their names before the ending."""
    target = Path(path).expanduser().absolute()
    for name, one in documents.items():
        place = target if len(documents) == 1 else target.with_stem(f"{target.stem}-{name}")
        try:
            rundir.write(place, rundir.as_json(one.value))
        except OSError as error:
            raise unwritable(error, place, "--save FILE") from error


def _print_json(judged: Sequence[Judged], between: list[Result], language: str) -> None:
    rows = [
        {"facts": one.name, "matrix": one.case.matrix.name, **report.document(one.results, language)} for one in judged
    ]
    whole = {"fit": all(row["fit"] for row in rows) and not verdict.failed(between), "machines": rows}
    if between:
        whole["between"] = report.document(between, language)
    print(json.dumps(whole, indent=1, ensure_ascii=False))


def _show(judged: Sequence[Judged], between: list[Result], asked: Asked) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 240)
    for one in judged:
        named = f" · {asked.recipe}" if asked.recipe else ""
        heading = say(HEADING, asked.language).format(facts=one.name, matrix=one.case.matrix.name, recipe=named)
        if not asked.matrix and not asked.recipe and one.emulated:
            why = NO_NPU if one.case.matrix.name == CPU else IMAGE_NO_NPU
            heading += f"\n{say(why, asked.language).format(matrix=one.case.matrix.name)}"
        report.show(one.results, heading, asked.language, console, brief=len(judged) > 1)
    if between:
        report.show(between, say(report.BETWEEN, asked.language), asked.language, console)
