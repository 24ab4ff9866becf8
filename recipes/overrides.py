"""What is wrong with `--set KEY=VALUE`, judged without composing, so that all mistakes are told at once."""

from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from recipes import keys, kinds

SYNTAX = "expected --set KEY=VALUE (+KEY=VALUE for a key that is not there yet, ~KEY to remove one)"


def faults(settings: Sequence[str], config: DictConfig, defaults: DictConfig) -> list[str]:
    """A message for each setting that cannot be applied to `config`; `defaults` is verl's config without a recipe."""
    known = keys.flatten(config)
    parser = OverridesParser.create()
    return [fault for setting in settings if (fault := _fault(setting, parser, known, config, defaults))]


def _fault(setting: str, parser: OverridesParser, known: dict, config: DictConfig, defaults: DictConfig) -> str | None:
    name, equals, text = setting.partition("=")
    if not name.strip("+~ "):
        return f"{SYNTAX}, found {setting!r} without a key"
    if not setting.startswith("~") and not text.strip():
        empty = f", or \"{name}=''\" for an empty text" if equals else ""
        return f"{SYNTAX}, found {setting!r} without a value; write {name}=VALUE{empty}"
    try:
        override = parser.parse_override(setting)
    except HydraException as error:
        return f"{SYNTAX}, found {setting!r}: {str(error).splitlines()[0]}; quote values with special characters"
    key = override.get_key_element().lstrip("+~")
    if "@" in key:  # a choice in the defaults list: Hydra names the options itself
        return None
    return next(_faults_of(override, key, known, config, defaults), None)


def _faults_of(override: Override, key: str, known: dict, config: DictConfig, defaults: DictConfig) -> Iterator[str]:
    if key == "hydra" or key.startswith("hydra."):
        yield f"{key}: expected a key of the recipe; Hydra's own are set by the launcher"
    if override.is_sweep_override():
        yield f"{key}: expected one value, found several; a list is written [a,b]"
    if override.is_delete():
        if key not in known:
            yield f"~{key}: expected a key that is there; {keys.suggestion(key, known)}"
        elif key in keys.flatten(defaults):
            yield f"~{key}: expected a key that the recipe adds, found one that verl reads; give it another value"
        return
    if override.is_add() and not override.is_force_add():
        if key in known and not isinstance(known[key], dict):
            yield f"+{key}: expected a key that is not there yet, found it with the value {known[key]!r}; drop the +"
    elif key not in known and not override.is_force_add():
        yield (
            f"{key}: expected a key of the recipe, found none of that name; {keys.suggestion(key, known)}; "
            f"a new key is written +{key}=VALUE"
        )
    value = override.value()
    if key == "launch" or key.startswith("launch."):
        yield from filter(None, [keys.launch_fault(key, value)])
    elif key in known and not (isinstance(known[key], dict) and isinstance(value, dict)):
        yield from filter(None, [kinds.fault(key, value, config, defaults)])
