"""Going on with an earlier run: from which checkpoint, with which steps kept, and what differs from last time."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from errors import UserError
from recipes import checkpoints, keys, metrics
from recipes.compose import setting
from recipes.rundir import CONFIG, RunDir, write


@dataclass(frozen=True)
class Start:
    """Where a run starts: Hydra overrides for verl, the last step already done, and what to tell."""

    placement: list[str] = field(default_factory=list)
    step: int = 0
    notes: list[str] = field(default_factory=list)


def plan(run: RunDir, config: DictConfig) -> Start:
    """Picks the last complete checkpoint of an earlier run. Changes nothing."""
    chosen, skipped = checkpoints.latest(checkpoints.inspect(run.checkpoints))
    notes = [
        f"{checkpoint.folder.name} is half-written and is passed over: {', '.join(checkpoint.faults)}"
        for checkpoint in skipped
    ]
    if chosen is None:
        notes.append(f"no complete checkpoint in {run.checkpoints}: starting from the first step")
        # verl's own search would take a half-written one; a checkpoint that the recipe names is left to it
        automatic = config.trainer.resume_mode == "auto"
        return Start(["trainer.resume_mode=disable"] if automatic else [], notes=notes)
    notes.append(f"resuming after step {chosen.step}, from {chosen.folder}")
    placement = ["trainer.resume_mode=resume_path", setting("trainer.resume_from_path", chosen.folder)]
    return Start(placement, chosen.step, notes)


def prepare(run: RunDir, start: Start) -> None:
    """Makes the directory ready: steps after the checkpoint leave `metrics.jsonl` (they stay in the log)."""
    kept = {entry["step"]: entry for entry in metrics.from_log(_lines(run.log)) if entry["step"] <= start.step}
    kept |= {entry["step"]: entry for entry in metrics.read(run.metrics) if entry["step"] <= start.step}
    text = "".join(metrics.to_json(kept[step]) + "\n" for step in sorted(kept) if start.step)
    write(run.metrics, text)
    if start.step:
        found = [one for one in checkpoints.inspect(run.checkpoints) if one.step == start.step]
        checkpoints.point_to(run.checkpoints, found[0])
    with run.log.open("a") as log:
        log.write(f"\n=== resumed after step {start.step} ===\n")


def differences(run: Path, config: DictConfig) -> Iterator[str]:
    """The keys in which an earlier run's config and this one differ, a line each. UserError where it is damaged."""
    file = run / CONFIG
    try:
        before = keys.leaves(OmegaConf.load(file))
        if not before:
            raise ValueError("no keys in it")
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(
            f"{file}: expected the earlier run's config, found: {str(error).strip().splitlines()[0]}; "
            f"restore the file, or start anew with another --run-dir"
        ) from error
    for key, old, new in keys.changes(before, keys.leaves(config)):
        yield f"{key}: was {old!r}, is {new!r}"


def _lines(log: Path) -> Iterator[str]:
    try:
        with log.open(errors="replace") as file:
            yield from file
    except FileNotFoundError:
        return
