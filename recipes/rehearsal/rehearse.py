"""Runs a recipe in miniature, two steps and the second again from the first's checkpoint, and judges what it saw.

The second step is made again by new processes: those of the first run would hide F28, since an optimizer that has its
moments already names them when a checkpoint is loaded.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

import matrix as matrices
from checks import problems
from errors import UserError
from recipes import command, failure, launch, prepare, rundir, stacks
from recipes.compose import HOME, INSTALLED, Recipe, setting, verl_defaults
from recipes.lint import Facts, lint_facts, read
from recipes.lint.facts import OVERRIDE
from recipes.lint.upstream import MC2_RANKS
from recipes.order import Order
from recipes.rehearsal import checks, miniature, observations, upstream, verdict
from recipes.rehearsal.observations import Observations
from recipes.rehearsal.upstream import Stack
from recipes.scratch import make as make_scratch
from recipes.watch import Outcome, watch

PROBES = "rl_probes"
RESUMED = "resumed"
PATIENCE = 600.0  # seconds without a line of the log or a step: a hang
READ_SECONDS = 300


def rehearse(order: Order) -> int:
    """The exit code: 0 where every check passed, 1 where one failed. UserError for what the user can put right."""
    if not order.rehearse:
        raise UserError("--root, --any-commit: expected --rehearse beside it, found none; add it, or leave them out")
    facts, recipe, faults = read(order.recipe, order.matrix, order.nodes, order.settings)
    _refuse_what_lint_refuses(facts, [finding.message for finding in faults])
    stack = _stack(order, facts)
    small, changes = miniature.shrink(_for_stack(recipe.config, stack), facts, stack.id)
    path = Path(order.run_dir).expanduser().absolute() if order.run_dir else rundir.default(f"rehearsal-{recipe.name}")
    if rundir.is_run(path):
        raise UserError(f"--run-dir {path}: expected a new folder, found an earlier run; name another")
    verdict.introduce(recipe.name, facts.matrix, stack, changes)
    if order.dry_run:
        return 0
    config = _equipped(small, stack, path, facts)
    made = replace(recipe, config=config)
    site = prepare.site(made)
    started = time.monotonic()
    code, found, mindspeed = 0, _prepared(made, site), Observations().mindspeed()
    if not found:
        seen, code = _perform(config, facts, site, path)
        found, mindspeed = checks.results(seen), seen.first.mindspeed()
    seconds = time.monotonic() - started
    path.mkdir(parents=True, exist_ok=True)
    document = {"recipe": recipe.name, "matrix": facts.matrix, "stack": asdict(stack), "seconds": round(seconds, 1)}
    document |= {"mindspeed": mindspeed, "changes": [asdict(change) for change in changes]}
    document |= {"results": [asdict(result) for result in found]}
    rundir.write(path / "verdict.json", rundir.as_json(document))
    return code or verdict.conclude(found, stack, path, seconds, _needs_stand_in(facts), mindspeed)


def _prepared(made: Recipe, site: Path) -> list[checks.Result]:
    """Makes the toy's weights and data; what keeps it from that is a result where it is a known problem."""
    try:
        prepare.everything(made, site)
    except UserError as error:
        known = problems.matching(str(error).splitlines())
        if known is None:
            raise
        return [checks.Result("weights in Megatron's layout", "fail", str(error), known[0].id)]
    return []


def _refuse_what_lint_refuses(facts: Facts, faults: list[str]) -> None:
    """Sizes that do not fit production have no miniature; other findings do not keep it from being rehearsed."""
    sizes = [
        one.message for one in lint_facts(facts) if one.level == "fail" and one.rule.startswith(("sizes", "lengths"))
    ]
    if faults or sizes:
        lines = "\n".join(f"- {line}" for line in [*faults, *sizes])
        raise UserError(f"expected a recipe whose sizes fit together, found (see `invoke lint`):\n{lines}", code=1)


def _stack(order: Order, facts: Facts) -> Stack:
    if order.root is None:
        return upstream.installed()
    return upstream.checked_out(Path(order.root).expanduser(), matrices.load(facts.matrix), order.any_commit)


def _for_stack(config: DictConfig, stack: Stack) -> DictConfig:
    """The installed verl may know keys that the matrix's commit does not: they keep its defaults."""
    if stack.paths:
        return config
    base = verl_defaults(INSTALLED).copy()
    OmegaConf.set_struct(base, False)
    return OmegaConf.merge(base, config)


def _equipped(small: DictConfig, stack: Stack, run: Path, facts: Facts) -> DictConfig:
    """The miniature with instruments, on the path of the stack."""
    config = small.copy()
    own = OmegaConf.select(config, "actor_rollout_ref.model.external_lib")
    config.actor_rollout_ref.model.external_lib = PROBES
    env = config.launch.env
    env.RL_PROBES = str(run / "probes")
    if own:
        env.RL_PROBES_ALSO = own
    env.NPU_EMULATOR_ENGINE_RANKS = (facts.size("rollout_tp") or 1) * facts.engine_dp
    if _needs_stand_in(facts):
        env.RL_PROBES_ROLLOUT = "hf"
    if stack.paths:
        env.PYTHONPATH = os.pathsep.join(map(str, stack.paths))
    return config


def _needs_stand_in(facts: Facts) -> bool:
    """The commercial matrix's vLLM is a commit between releases, on no index: its vllm-ascend fits no release."""
    return facts.matrix == "commercial"


def _perform(config: DictConfig, facts: Facts, site: Path, path: Path) -> tuple[checks.Rehearsed, int]:
    """Both runs and what they left behind; the exit code is not 0 where a user stopped them."""
    causes = {}
    first = _run(config, path, site, [])
    if first.signal:
        return _gather(config, facts, site, path, causes), 128 + first.signal
    if first.status:
        causes["first"] = _cause(path, first)
    if (path / "checkpoints" / "global_step_1" / "data.pt").is_file():
        second = _run(_again(config, path), path / RESUMED, site, _from_first_step(path))
        if second.signal:
            return _gather(config, facts, site, path, causes), 128 + second.signal
        if second.status:
            causes["resumed"] = _cause(path / RESUMED, second)
    return _gather(config, facts, site, path, causes), 0


def _again(config: DictConfig, path: Path) -> DictConfig:
    config = config.copy()
    config.launch.env.RL_PROBES = str(path / RESUMED / "probes")
    config.launch.env.RL_PROBES_EARLIER = str(path / "probes")
    return config


def _from_first_step(path: Path) -> list[str]:
    step = path / "checkpoints" / "global_step_1"
    return ["trainer.resume_mode=resume_path", setting("trainer.resume_from_path", step)]


def _run(config: DictConfig, path: Path, site: Path, placement: list[str]) -> Outcome:
    files = {rundir.CONFIG: OmegaConf.to_yaml(config), rundir.LOG: "", rundir.METRICS: ""}
    with rundir.explained(path), rundir.create(path, files) as run:
        scratch = make_scratch()
        added = command.added_environment(config, site, run.path, scratch)
        ordered = command.build(run.path, scratch, added, placement)
        rundir.update(run, {rundir.COMMAND: ordered.script()})
        return watch(launch.start(ordered, run, scratch), run, 0, miniature.STEPS, patience=PATIENCE)


def _cause(path: Path, outcome: Outcome) -> tuple[str, str]:
    """What ended a run, and the row of the known problem that it is."""
    if outcome.stalled:
        where = "; ".join(f"process {pid} at {line}" for pid, line in stacks.innermost(path / "trace").items())
        return f"no progress for {PATIENCE:.0f} s while {outcome.stalled}: {where or 'no process answered'}", ""
    with (path / rundir.LOG).open(errors="replace") as log:
        cause = failure.root_cause(log)
        log.seek(0)
        known = problems.matching(log)
    if known:
        problem, line = known
        return failure.unprefixed(line), problem.id
    return (cause.text if cause else "see its log"), ""


def _gather(config: DictConfig, facts: Facts, site: Path, path: Path, causes: dict) -> checks.Rehearsed:
    model = Path(OmegaConf.select(config, "actor_rollout_ref.model.path"))
    return checks.Rehearsed(
        first=_observed(site, path),
        resumed=_observed(site, path / RESUMED),
        model=observations.model_tensors(model),
        log_probs={step: gap for step in (1, 2) if (gap := _log_probs(site, model, path, step))},
        causes=causes,
        samples=facts.size("samples") or 1,
        graphs=facts.graphs,
        few_ranks=1 < facts.engine_ep < MC2_RANKS,
        stand_in=_needs_stand_in(facts),
        fused_experts=facts.is_on(f"{OVERRIDE}.moe_grouped_gemm") and facts.matrix == "performance",  # never at 1cdd0ab
    )


def _observed(site: Path, path: Path) -> observations.Observations:
    seen = observations.read(path)
    folder = path / "checkpoints" / f"global_step_{miniature.STEPS}" / "actor" / "dist_ckpt"
    return replace(seen, checkpoint=_tensors(site, "checkpoint", folder) if folder.is_dir() else {})


def _log_probs(site: Path, model: Path, path: Path, step: int) -> dict:
    folder = path / "probes" / "log-probs"
    return _tensors(site, "log-probs", model, folder, step) if any(folder.glob(f"step{step}-*")) else {}


def _tensors(site: Path, *arguments: object) -> dict:
    """What recipes.rehearsal.tensors says; empty where it fails, with its last line.

    With the emulator in front: torch and transformers load torch_npu, and an image's own wants the driver.
    """
    python_path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "recipes.rehearsal.tensors", *map(str, arguments)],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=READ_SECONDS,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": python_path},
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"could not read {arguments[0]}: {last[0]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])
