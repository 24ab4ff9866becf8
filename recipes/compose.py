"""From a recipe's name to its composed config: what the file says over verl's own defaults, with `--set` applied.

A recipe is a plain Hydra config that inherits from verl's `ppo_megatron_trainer`. It is composed here without importing
verl (nor torch nor ray, which verl would bring): for the cpu matrix the folder of the installed verl's configs is found
by name and used as a file path; for the NPU matrices, whose verl need not be here, the recorded defaults of that commit
(`recipes.schema`) stand in its place.
"""

import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, open_dict

import manifest
from errors import UserError
from recipes import keys, overrides, schema

FOLDER = Path(__file__).resolve().parent
HOME = FOLDER.parent
PARENT = "ppo_megatron_trainer"
PLAIN = re.compile(r"[\w./-]+", re.ASCII)  # a text that is a text in Hydra's grammar, too
STACK = "stack"  # the group whose options are the matrices a recipe is for
INSTALLED = "cpu"  # the matrix whose verl is the installed one
DEFAULT = "performance"  # the matrix of a recipe that names none

# Keys that the commercial matrix's verl gets from MindSpeed-RL 2.2.0's plugin (its vllm_rollout_spmd.py reads them).
ADDED = {
    "commercial": {
        f"actor_rollout_ref.rollout.{name}"
        for name in ("enable_expert_parallel", "dp_model_parallel_size", "enable_prefix_caching")
    }
}


# Keys that an installed verl older than the cpu matrix's lacks, each with what it has instead. The commercial image
# has 796871d, which weighs no rollouts and gives Ray the number of CPUs alone (verl/trainer/main_ppo.py).
EARLIER = {
    "algorithm.rollout_is_threshold": None,
    "ray_kwargs.ray_init.num_cpus": "ray_init.num_cpus",
    "ray_kwargs": None,
}


@dataclass(frozen=True)
class Recipe:
    """A recipe that was found and composed."""

    name: str
    given: str  # how the user names it: `name`, or a file
    file: Path
    config: DictConfig  # interpolations unresolved, as verl will read them
    matrix: str = INSTALLED  # over whose verl it was composed


def compose(name: str, settings: Sequence[str] = (), matrix: str | None = None) -> Recipe:
    """The recipe called `name` (or the file `name`, if it ends in .yaml) with `settings`, each a Hydra override.

    `matrix` instead of the recipe's own (in an image: the image's) chooses the option of that name of its stack group.
    Raises UserError for an unknown recipe, a matrix that it is not for, and all mistakes in the file or in the settings
    at once.
    """
    recipe, found, refused = judge(name, settings, matrix)
    if found or refused:
        raise UserError("\n".join([*found, *refused]))
    return recipe


def judge(name: str, settings: Sequence[str] = (), matrix: str | None = None) -> tuple[Recipe, list[str], list[str]]:
    """Like `compose`, but mistakes that leave a config come beside it: the file's, then those of the settings.

    They are unknown keys and values of a wrong kind. With a refused setting the config is the recipe's without any.
    """
    os.environ.setdefault("ASCEND_RL_HOME", str(HOME))  # recipes place their files with it
    file = find(name)
    written = _defaults_list(file)
    chosen = matrix or _set_stack(settings) or _of_image(written) or written.matrix
    stack = _stack_setting(file, written, chosen)
    defaults, types = verl_defaults(chosen), verl_types(chosen)
    plain = _fitted(_compose(file.parent, file.stem, chosen, stack), defaults, chosen)
    found = list(_file_faults(plain, defaults, types, ADDED.get(chosen, ())))
    refused = overrides.faults(settings, overrides.Known(plain, defaults, types, written.groups))
    own = [setting for setting in settings if not setting.startswith(f"{STACK}=")]
    config = plain
    if own and not refused:
        config = _fitted(_compose(file.parent, file.stem, chosen, [*stack, *own]), defaults, chosen)
    if not found and not refused:
        found = list(keys.unresolved(config, defaults, types))
    return Recipe(file.stem, name, file, config, chosen), [f"{file}: {fault}" for fault in found], refused


def _file_faults(
    plain: DictConfig, defaults: DictConfig, types: Mapping[str, str], added: Iterable[str]
) -> Iterator[str]:
    absent = keys.missing(plain, defaults)
    if absent:
        yield (
            f"expected a recipe that inherits from verl's {PARENT}, found none of its key {absent[0]}; begin the file "
            f"with defaults: [{PARENT}, _self_]"
        )
    else:
        yield from keys.faults(plain, defaults, types, added)


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


def matrices(name: str) -> list[str]:
    """The matrices that a recipe is for, its own first."""
    written = _defaults_list(find(name))
    return sorted({written.matrix, *written.groups.get(STACK, ())}, key=lambda one: (one != written.matrix, one))


@cache
def verl_defaults(matrix: str = INSTALLED) -> DictConfig:
    """verl's own config for Megatron at a matrix's commit, as it is without any recipe."""
    if matrix == INSTALLED:
        return _compose(verl_configs(), PARENT, matrix)
    tree: dict = {}
    for key, field in schema.load("verl", matrix).items():
        if field.listed:
            *parents, last = key.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = field.default
    return OmegaConf.create(tree)


@cache
def verl_types(matrix: str = INSTALLED) -> dict[str, str]:
    """The annotation of each of verl's keys that has one, and of Megatron's fields where verl takes them."""
    override = "actor_rollout_ref.actor.megatron.override_transformer_config"
    fields = {f"{override}.{name}": field for name, field in schema.load("megatron", matrix).items()}
    return {key: field.type for key, field in {**fields, **schema.load("verl", matrix)}.items() if field.type}


@cache
def verl_configs() -> Path:
    """The folder of the installed verl's Hydra configs. Looking verl up does not import it."""
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


@dataclass(frozen=True)
class _Written:
    """What the defaults lists of a recipe and its parents say."""

    matrix: str
    groups: dict[str, list[str]]  # group and the options that there are


def _defaults_list(file: Path) -> _Written:
    """The matrix and groups of a recipe, parents included; empty where the file is no mapping (composing says so)."""
    matrix, groups, line = None, {}, []
    while file is not None and file.is_file():
        line.append(file)
        if file in line[:-1]:
            circle = " → ".join(one.stem for one in line)
            raise UserError(f"{file}: expected a line of parents that ends, found {circle}; correct a defaults list")
        with _errors(file):
            loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
        content = loaded if isinstance(loaded, dict) else {}
        launch = content.get("launch")
        own = launch.get("matrix") if isinstance(launch, dict) else None
        parent = None
        listed = content.get("defaults")
        for entry in listed if isinstance(listed, list) else []:
            if isinstance(entry, str) and entry not in ("_self_", PARENT):
                parent = _beside(file, entry)
            elif isinstance(entry, dict):
                for group, option in entry.items():
                    name = str(group).removeprefix("override ").strip("/ ")
                    groups.setdefault(name, _options(file, name))
                    own = own or (option if name == STACK else None)
        matrix = matrix or own
        file = parent
    return _Written(
        matrix if isinstance(matrix, str) else DEFAULT, {name: options for name, options in groups.items() if options}
    )


def _beside(file: Path, name: str) -> Path | None:
    places = (folder / f"{name}.yaml" for folder in (file.parent, FOLDER))
    return next((place for place in places if place.is_file() and place != file), None)


def _options(file: Path, group: str) -> list[str]:
    folders = (folder / group for folder in (file.parent, FOLDER))
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def _set_stack(settings: Sequence[str]) -> str | None:
    """The matrix that the settings choose, `stack=NAME`."""
    chosen = [setting.partition("=")[2] for setting in settings if setting.startswith(f"{STACK}=")]
    return chosen[-1] if chosen else None


def _of_image(written: _Written) -> str | None:
    """The matrix of the image that this runs in, where the recipe is for it."""
    own = manifest.matrix()
    return own if own in written.groups.get(STACK, ()) else None


def _stack_setting(file: Path, written: _Written, chosen: str) -> list[str]:
    """The override that makes the recipe one for the chosen matrix."""
    options = written.groups.get(STACK)
    if not options:
        if chosen != written.matrix:
            raise UserError(f"{file}: expected the matrix {written.matrix}, for which this recipe is, found {chosen}")
        return []
    if chosen not in options:
        raise UserError(f"{file}: expected one of the matrices {', '.join(options)}, found {chosen!r}")
    return [f"{STACK}={chosen}"]


def _compose(folder: Path, name: str, matrix: str, settings: Sequence[str] = ()) -> DictConfig:
    parents = [verl_configs()] if matrix == INSTALLED else []
    # A search path given here replaces the file's own, whose pkg:// entry would import verl.
    places = [_quoted(f"file://{path}") for path in dict.fromkeys((*parents, FOLDER)) if path != folder]
    with _errors(folder / f"{name}.yaml"), _recorded(matrix), _initialized(folder):
        return hydra_compose(name, overrides=[f"hydra.searchpath=[{','.join(places)}]", *settings])


def _fitted(config: DictConfig, defaults: DictConfig, matrix: str) -> DictConfig:
    """The config with the keys that an older installed verl has in place of later ones."""
    if matrix == INSTALLED:
        with open_dict(config):
            for key, earlier in EARLIER.items():
                node, last = _node(config, key)
                if last not in (_node(defaults, key)[0] or ()) and last in (node or ()):
                    value = node.pop(last)
                    if earlier:
                        OmegaConf.update(config, earlier, value)
    return config


def _node(config: DictConfig, key: str) -> tuple[DictConfig | None, str]:
    """The table that a key stands in, None where there is none, and its last name."""
    parent, _, last = key.rpartition(".")
    return (OmegaConf.select(config, parent) if parent else config), last


@contextmanager
def _recorded(matrix: str) -> Iterator[None]:
    """Lets Hydra find the recorded defaults of an NPU matrix's verl under the name of its config."""
    if matrix == INSTALLED:
        yield
        return
    store = ConfigStore.instance()
    store.store(name=PARENT, node=verl_defaults(matrix))
    try:
        yield
    finally:  # left there, it would be taken for a schema of the installed verl's file
        store.repo.pop(f"{PARENT}.yaml")


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
    except UserError:
        raise
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{file}: expected UTF-8, found the byte 0x{byte:02x}; convert the file to UTF-8") from error
    except Exception as error:  # Hydra's, OmegaConf's, YAML's and Python's own: all say what is wrong with the file
        cause = error.__cause__ or error
        first = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise UserError(f"{file}: expected a config that Hydra can compose, found: {first}") from error
