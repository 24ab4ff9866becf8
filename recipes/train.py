"""`invoke train`: compose, check, launch, watch, and say how it went."""

import contextlib
import json
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

import manifest
import matrix as matrices
from checks import secrets
from errors import UserError
from patches import journal, places
from recipes import command, failure, launch, metrics, preflight, prepare, resume, rundir
from recipes.compose import DEFAULT, INSTALLED, Recipe, compose
from recipes.order import Order
from recipes.resume import Start
from recipes.scratch import make as make_scratch
from recipes.scratch import place as scratch_place
from recipes.watch import Outcome, watch

FACTS_SECONDS = 5.0  # to finish describing the machine after a run that was shorter than that


def train(order: Order) -> int:
    """Trains a recipe; the exit code. Raises UserError for whatever the user can put right."""
    if order.rehearse or order.root or order.any_commit:
        from recipes.rehearsal import rehearse

        return rehearse(order)
    recipe = compose(order.recipe, order.settings, order.matrix)
    _refuse_several_nodes(order, recipe.config)
    chosen = _matrix(order, recipe.config)
    path = _run_path(order, recipe)
    earlier = rundir.is_run(path)  # refuses a place that holds something else before anything is made
    if order.dry_run:
        return _show(recipe, path, earlier)
    site = prepare.site(recipe)
    prepare.everything(recipe, site)
    preflight.check(recipe, path)
    return run_unchecked(recipe, chosen, site, path)


def run_unchecked(recipe: Recipe, chosen: matrices.Matrix, site: Path | None, path: Path) -> int:
    """Runs a recipe whose assets are there in `path`, a new folder or an earlier run's; the exit code."""
    earlier = rundir.is_run(path)
    files = _description(recipe, chosen)
    with _open(recipe, path, earlier, files) as (run, start):
        total = total_steps(recipe.config)
        if total is not None and start.step >= total:
            print(f"{run.path}: all {total} steps are done; nothing to do")
            return 0
        if earlier:
            with rundir.explained(path):
                resume.prepare(run, start)
                rundir.update(run, files)
        return _run(recipe, run, start, site, total)


def total_steps(config: DictConfig) -> int | None:
    """The number of training steps: what the recipe says, but no more than its epochs hold; None where nothing says."""
    given = OmegaConf.select(config, "trainer.total_training_steps")
    rows = preflight.training_rows(config)
    held = None if rows is None else rows // config.data.train_batch_size * config.trainer.total_epochs
    return min((number for number in (given, held) if number is not None), default=None)


def _run(recipe: Recipe, run: rundir.RunDir, start: Start, site: Path | None, total: int | None) -> int:
    for note in [*start.notes, f"run directory: {run.path}"]:
        print(note, flush=True)
    scratch = make_scratch()
    try:
        with rundir.explained(run.path):
            ordered = _command(recipe.config, run.path, scratch, site, start)
            rundir.update(run, _command_files(ordered))
            offset = run.log.stat().st_size
            launched = launch.start(ordered, run, scratch)
    except UserError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    describing = threading.Thread(target=_facts, args=(run,), daemon=True)
    describing.start()
    outcome = watch(launched, run, offset, total, start.step)
    describing.join(0 if outcome.signal else FACTS_SECONDS)
    return _report(outcome, run, offset, total)


def _report(outcome: Outcome, run: rundir.RunDir, offset: int, total: int | None) -> int:
    """Says how the run ended; its exit code."""
    if outcome.left:
        print(f"still alive after SIGKILL: processes {', '.join(map(str, outcome.left))}; see `ps` for their state")
    if outcome.signal:
        ended = "" if outcome.left else "; everything that this run started has ended"
        print(f"stopped{ended}. Resume with --run-dir {shlex.quote(str(run.path))}")
        return 128 + outcome.signal
    if outcome.status:
        return _report_failure(outcome.status, run, offset)
    steps = metrics.read(run.metrics)
    if total and (not steps or steps[-1]["step"] < total):
        print(f"expected {total} steps, found {steps[-1]['step'] if steps else 'none'}; see {run.log}")
    rewards = metrics.first_and_last(steps)
    if rewards:
        print(f"mean reward: first three steps {rewards[0]:.4f}, last three steps {rewards[1]:.4f}")
    print(f"run directory: {run.path}")
    return 0


def _report_failure(status: int, run: rundir.RunDir, offset: int) -> int:
    with run.log.open("rb") as log:
        before = log.read(offset).count(b"\n")
        cause = failure.root_cause(line.decode(errors="replace") for line in log)
    print(f"the run failed: {failure.status(status)}")
    if cause:
        place = f"line {before + cause.line} of {run.log.name}" + (f", said by {cause.source}" if cause.source else "")
        print(f"last error: {cause.text}\n  ({place})")
    log = shlex.quote(str(run.log))
    print(f"run directory: {run.path}")
    print(f"next: invoke triage {log}")
    return 1


@contextlib.contextmanager
def _open(recipe: Recipe, path: Path, earlier: bool, files: dict[str, str]) -> Iterator[tuple[rundir.RunDir, Start]]:
    """The run directory, new or an earlier one as it is, locked."""
    with contextlib.ExitStack() as stack:
        with rundir.explained(path):
            if earlier:
                run = stack.enter_context(rundir.reopen(path))
                start = _resumed(run, recipe)
            else:
                run = stack.enter_context(rundir.create(path, {**files, rundir.LOG: "", rundir.METRICS: ""}))
                start = Start()
        yield run, start


def _resumed(run: rundir.RunDir, recipe: Recipe) -> Start:
    """Where the earlier run goes on, and in which keys it differs from this one."""
    start = resume.plan(run, recipe.config)
    changed = list(resume.differences(run.path, recipe.config))
    if changed:
        start.notes.append("the recipe differs from the earlier run's:")
        start.notes.extend(f"  {line}" for line in changed)
    return start


def _description(recipe: Recipe, chosen: matrices.Matrix) -> dict[str, str]:
    return {
        rundir.CONFIG: OmegaConf.to_yaml(recipe.config),
        rundir.MATRIX: rundir.as_json(json.loads(chosen.model_dump_json())),
        rundir.PATCHES: rundir.as_json({"applied": journal.load(places.place(None).home).patches}),
    }


def _command_files(ordered: command.Command) -> dict[str, str]:
    return {
        rundir.COMMAND: ordered.script(),
        rundir.ENVIRONMENT: rundir.as_json(secrets.redacted(ordered.environment())),
    }


def _command(config: DictConfig, run: Path, scratch: Path, site: Path | None, start: Start) -> command.Command:
    added = command.added_environment(config, site, run, scratch)
    return command.build(run, scratch, added, start.placement)


def _show(recipe: Recipe, path: Path, earlier: bool) -> int:
    """Prints what would be started. Writes nothing and starts nothing."""
    start = _resumed(rundir.RunDir(path, -1), recipe) if earlier else Start()
    for note in start.notes:
        print(f"# {note}")
    scratch = scratch_place() / "r.XXXXXXXX"  # the real one gets a name of its own
    print(_command(recipe.config, path, scratch, prepare.site(recipe, build=False), start).script(), end="")
    return 0


def _refuse_several_nodes(order: Order, config: DictConfig) -> None:
    nodes = order.nodes or OmegaConf.select(config, "launch.nodes") or config.trainer.nnodes
    if nodes != 1 or config.trainer.nnodes != 1:
        raise UserError(
            f"expected one node, found {nodes} (--nodes or launch.nodes) and trainer.nnodes {config.trainer.nnodes}: "
            f"several are not available in this version; use --nodes 1 --set trainer.nnodes=1"
        )


def _matrix(order: Order, config: DictConfig) -> matrices.Matrix:
    named = order.matrix or OmegaConf.select(config, "launch.matrix") or DEFAULT
    if named == INSTALLED:  # whatever is installed, and in an image that is the image's
        named = manifest.matrix() or named
    return matrices.load(named)


def _run_path(order: Order, recipe: Recipe) -> Path:
    return Path(order.run_dir).expanduser().absolute() if order.run_dir else rundir.default(recipe.name)


def _facts(run: rundir.RunDir) -> None:
    """Collects facts about the machine beside the run: they must not delay it."""
    with contextlib.suppress(Exception):  # a run is worth more than its description
        from checks import facts

        rundir.write(run.path / rundir.FACTS, rundir.as_json(facts.collect()))
