"""From a recipe's name to its composed config: what the file says over verl's own defaults, with `--set` applied.

A recipe is a plain Hydra config that inherits from verl's `ppo_megatron_trainer`. It is composed here without importing
verl (nor torch nor ray, which verl would bring): the folder of verl's configs is found by name and used as a file path.
"""

import difflib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig

from errors import UserError
from recipes import keys, overrides

FOLDER = Path(__file__).resolve().parent
HOME = FOLDER.parent
PARENT = "ppo_megatron_trainer"
PLAIN = re.compile(r"[\w./-]+", re.ASCII)  # a text that is a text in Hydra's grammar, too


@dataclass(frozen=True)
class Recipe:
    """A recipe that was found and composed."""

    name: str
    given: str  # how the user names it: `name`, or a file
    file: Path
    config: DictConfig  # interpolations unresolved, as verl will read them


def compose(name: str, settings: Sequence[str] = ()) -> Recipe:
    """The recipe called `name` (or the file `name`, if it ends in .yaml) with `settings`, each a Hydra override.

    Raises UserError for an unknown recipe and for all mistakes in the file or in the settings at once.
    """
    os.environ.setdefault("ASCEND_RL_HOME", str(HOME))  # recipes place their files with it
    file = find(name)
    plain = _compose(file.parent, file.stem)
    defaults = verl_defaults()
    _refuse(
        [f"{file}: {fault}" for fault in _file_faults(plain, defaults)] + overrides.faults(settings, plain, defaults)
    )
    config = _compose(file.parent, file.stem, settings) if settings else plain
    _refuse([f"{file}: {fault}" for fault in keys.unresolved(config, defaults)])
    return Recipe(file.stem, name, file, config)


def _file_faults(plain: DictConfig, defaults: DictConfig) -> Iterator[str]:
    absent = keys.missing(plain, defaults)
    if absent:
        yield (
            f"expected a recipe that inherits from verl's {PARENT}, found none of its key {absent[0]}; begin the file "
            f"with defaults: [{PARENT}, _self_]"
        )
    else:
        yield from keys.faults(plain, defaults)


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise UserError("\n".join(faults))


def names() -> list[str]:
    """The recipes of this checkout."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(name: str) -> Path:
    """The file of a recipe; UserError where there is none."""
    if not name:
        raise UserError(f"expected --recipe NAME, found none; the recipes are: {', '.join(names())}")
    file = Path(name).absolute() if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if file.is_file():
        return file
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"expected a recipe, found no file {file}; {hint}the recipes are: {', '.join(names())}")


@cache
def verl_defaults() -> DictConfig:
    """verl's own config for Megatron, as it is without any recipe."""
    return _compose(verl_configs(), PARENT)


@cache
def verl_configs() -> Path:
    """The folder of verl's Hydra configs. Looking verl up does not import it."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.origin:
        raise UserError("expected verl in this Python environment, found none; run ./invokew, which installs it")
    return Path(spec.origin).parent / "trainer" / "config"


def setting(key: str, value: Path | str) -> str:
    """A Hydra override for a text, quoted where Hydra's grammar needs it."""
    text = str(value)
    return f"{key}={text if PLAIN.fullmatch(text) else _quoted(text)}"


def _quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


def _compose(folder: Path, name: str, settings: Sequence[str] = ()) -> DictConfig:
    # A search path given here replaces the file's own, whose pkg:// entry would import verl.
    places = [_quoted(f"file://{path}") for path in dict.fromkeys((verl_configs(), FOLDER)) if path != folder]
    with _errors(folder / f"{name}.yaml"), _initialized(folder):
        return hydra_compose(name, overrides=[f"hydra.searchpath=[{','.join(places)}]", *settings])


@contextmanager
def _initialized(folder: Path) -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base=None):
        yield


@contextmanager
def _errors(file: Path) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        line = f"{file}, line {error.problem_mark.line + 1}" if error.problem_mark else str(file)
        raise UserError(f"{line}: expected YAML, found: {error.problem}; correct the file") from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{file}: expected UTF-8, found the byte 0x{byte:02x}; convert the file to UTF-8") from error
    except Exception as error:  # Hydra's, OmegaConf's, YAML's and Python's own: all say what is wrong with the file
        first = str(error.__cause__ or error).strip().splitlines()[0]
        raise UserError(f"{file}: expected a config that Hydra can compose, found: {first}") from error
