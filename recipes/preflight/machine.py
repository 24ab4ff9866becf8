"""The machine that a run is started on: devices, ports, disk and temporary folder."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from errors import UserError
from recipes import emulated, keys, scratch
from recipes.compose import Recipe

SMALLEST_SPACE = 64 << 20  # logs, metrics, configs
STATES_PER_WEIGHT = (
    8  # a checkpoint against the bf16 weights: bf16 weight, fp32 master and two fp32 moments, rounded up
)


def devices(recipe: Recipe) -> Iterator[str]:
    """As many NPUs as the recipe wants on this machine."""
    config = recipe.config
    wanted = config.trainer.n_gpus_per_node
    if emulated.is_emulated(config):
        found, kind = emulated.devices(config), "emulated NPUs (NPU_EMULATOR_DEVICES)"
    else:
        found, kind = len(_device_nodes()), "NPUs (/dev/davinci*)"
    if found < wanted:
        yield f"trainer.n_gpus_per_node: expected {wanted} {kind} on this machine, found {found}; lower it"
    resource = keys.leaves(config).get("ray_kwargs.ray_init.resources.NPU")
    if isinstance(resource, int | float) and resource < wanted:
        yield f"ray_kwargs.ray_init.resources.NPU: expected at least {wanted}, found {resource}; raise it"


def ports(recipe: Recipe) -> Iterator[str]:
    """The ports that the recipe names are free."""
    config = recipe.config
    named = {key: OmegaConf.select(config, key) for key in keys.leaves(config) if key.lower().endswith("port")}
    for key, value in named.items():
        number = int(value) if isinstance(value, int | str) and str(value).isdecimal() else 0
        if 0 < number < 65536 and (reason := _taken(number)):
            yield f"{key}: expected port {number} to be free, found: {reason}; stop what uses it or set another"


def console(recipe: Recipe) -> Iterator[str]:
    """verl prints its steps: the metrics and the view are read from them."""
    config = recipe.config
    given = config.trainer.logger
    if given != "console" and "console" not in given:
        yield f"trainer.logger: expected console in it, found {given}; add it"


def sockets(_: Recipe) -> Iterator[str]:
    """A temporary folder in which Ray's sockets have paths that the system takes."""
    try:
        scratch.place()
    except UserError as error:
        yield str(error)


def disk(run: Path, weights: int, config: DictConfig) -> Iterator[str]:
    """Room for the run directory, and the right to write there."""
    place = next(parent for parent in [run, *run.parents] if parent.exists())
    if not place.is_dir():
        yield f"{run}: expected to make a folder there, found that {place} is a file; use --run-dir"
        return
    try:
        with tempfile.TemporaryFile(dir=place):  # a name that is never seen; permission bits alone do not tell
            pass
    except OSError as error:
        yield f"{run}: expected a writable place, found {place}: {error.strerror}; use --run-dir"
        return
    saves = OmegaConf.select(config, "trainer.save_freq") or -1
    wanted = SMALLEST_SPACE + (STATES_PER_WEIGHT * weights if saves > 0 else 0)
    free = shutil.disk_usage(place).free
    if free < wanted:
        yield (
            f"{run}: expected {wanted >> 20} MiB free for logs and one checkpoint, found {free >> 20} MiB on the disk "
            f"of {place}; free some or use --run-dir"
        )


def _device_nodes() -> list[Path]:
    return [path for path in Path("/dev").glob("davinci*") if path.name[7:].isdigit()]


def _taken(port: int) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror
    return None
