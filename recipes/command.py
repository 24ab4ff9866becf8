"""The exact command of a run and the environment it gets: what `command`, `env.json` and `--dry-run` show."""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from checks import secrets
from errors import UserError
from recipes import scratch as scratch_folder
from recipes.compose import HOME, setting

RUN_MARK = "ASCEND_RL_RUN"  # in the environment of everything that a run starts
# Where verl's other loggers write (verl/utils/tracking.py), else the current folder: variable and place in the run.
LOGGERS = {
    "tensorboard": ("TENSORBOARD_DIR", "tensorboard"),
    "wandb": ("WANDB_DIR", "."),
    "file": ("VERL_FILE_LOGGER_ROOT", "."),
    "swanlab": ("SWANLAB_LOG_DIR", "swanlab"),
}
UNSET = (
    "PYTHONDONTWRITEBYTECODE",  # a dozen processes import the same 4,600 modules: compiled by each, that takes minutes
    "RAY_ADDRESS",  # would send the run's processes to another Ray cluster
)

# Said for every run unless the recipe or the user's environment says otherwise.
DEFAULTS = {
    "HYDRA_FULL_ERROR": "1",  # the whole cause in the log
    "PYTHONUNBUFFERED": "1",  # the log is a file, and is watched
    "RAY_DEDUP_LOGS": "0",  # else Ray leaves out lines that look alike, such as those of two steps
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Command:
    """What is run: `arguments`, in `folder`, with `added` on top of the caller's environment less `UNSET`."""

    arguments: list[str]
    added: dict[str, str]
    folder: Path
    scratch: Path | None = None

    def environment(self) -> dict[str, str]:
        """The whole environment of the run."""
        return whole(self.added)

    def script(self) -> str:
        """The command as a shell takes it; secrets that the recipe names are taken from the shell's environment."""
        removed = [word for name in UNSET for word in ("-u", name)]
        added = [f"{name}={_word(name, value)}" for name, value in sorted(self.added.items())]
        lines = [" ".join(["env", *removed]), *added, *_option_lines(self.arguments)]
        return f"cd {shlex.quote(str(self.folder))}\n{self._link()}" + " \\\n  ".join(lines) + "\n"

    def _link(self) -> str:
        """By hand, the link to the environment has to be made first; the launcher's goes with its scratch folder."""
        if self.arguments[0] == sys.executable or self.scratch is None:
            return ""
        link = self.scratch / scratch_folder.ENVIRONMENT
        return f"mkdir -p {link.parent} && ln -sfn {shlex.quote(sys.prefix)} {link}\n"


def build(run: Path, scratch: Path, added: dict[str, str], placement: list[str]) -> Command:
    """verl's own entry point on the composed config in `run`, writing nowhere but there and in `scratch`.

    `placement` are further Hydra overrides, such as the checkpoint to resume from.
    """
    arguments = [
        *(
            scratch_folder.python(scratch),
            "-m",
            "verl.trainer.main_ppo",
            "--config-dir",
            str(run),
            "--config-name",
            "config",
        ),
        setting("hydra.run.dir", run),
        "hydra.output_subdir=null",
        "hydra/job_logging=stdout",
        setting("trainer.default_local_dir", run / "checkpoints"),
        setting("++ray_kwargs.ray_init._temp_dir", scratch / "ray"),
        "++ray_kwargs.ray_init.address=local",
        *placement,
    ]
    return Command(arguments, added, Path.cwd(), scratch)


def added_environment(config: DictConfig, site: Path | None, run: Path | None, scratch: Path | None) -> dict[str, str]:
    """The variables that a run of this recipe gets. Without `run` and `scratch`: those its preparation gets."""
    added = {name: value for name, value in DEFAULTS.items() if name not in os.environ}
    added["ASCEND_RL_HOME"] = os.environ.get("ASCEND_RL_HOME", str(HOME))
    if run:
        added[RUN_MARK] = run.name
        added["VLLM_CACHE_ROOT"] = str(run / "cache" / "vllm")
        added |= {name: str(run / place) for key, (name, place) in LOGGERS.items() if key in config.trainer.logger}
    if run and site:
        added["NPU_EMULATOR_TRACE"] = str(run / "trace")
    added |= recipe_environment(config)
    if scratch:
        added["TMPDIR"] = str(scratch / scratch_folder.TEMPORARY)
        added["RAY_TMPDIR"] = str(scratch)  # verl 796871d starts Ray without the arguments that later ones take
    places = [site, HOME / "recipes" / "plugins", added.get("PYTHONPATH") or os.environ.get("PYTHONPATH")]
    added["PYTHONPATH"] = os.pathsep.join(str(place) for place in places if place)
    return added


def recipe_environment(config: DictConfig) -> dict[str, str]:
    """`launch.env` of the recipe as texts."""
    found = OmegaConf.select(config, "launch.env")
    environment = {}
    for name, value in (OmegaConf.to_container(found, resolve=True) if found else {}).items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UserError(
                f"launch.env.{name}: expected text or a number, found {value!r}; for text write {name}: 'on' in the "
                f"recipe (YAML reads on, off, yes and no as true and false), --set \"+launch.env.{name}='on'\" here"
            )
        if not re.fullmatch(r"[A-Za-z_]\w*", str(name), re.ASCII) or "\0" in str(value):
            raise UserError(
                f"launch.env.{name}: expected the name of an environment variable and a text without zero bytes, "
                f"found {value!r}; correct it"
            )
        environment[str(name)] = str(value)
    return environment


def whole(added: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with `added` on top, less what would lead the run astray."""
    return {name: value for name, value in {**os.environ, **added}.items() if name not in UNSET}


def _word(name: str, value: str) -> str:
    """A variable's value for a shell."""
    if secrets.shown(name, value) == value:
        return shlex.quote(value)
    return f'"${{{name}:?a secret, which is written down nowhere: set it}}"'


def _option_lines(arguments: list[str]) -> Iterator[str]:
    """The arguments for a shell, one a line, an option with its value."""
    words = iter(arguments)
    for word in words:
        value = next(words, None) if word.startswith("-") else None
        yield shlex.quote(word) if value is None else f"{shlex.quote(word)} {shlex.quote(value)}"
