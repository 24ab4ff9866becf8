"""What is wrong with `--set KEY=VALUE`, judged without composing, so that all mistakes are told at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from recipes import keys, kinds

SYNTAX = "expected --set KEY=VALUE (+KEY=VALUE for a key that is not there yet, ~KEY to remove one)"


@dataclass(frozen=True)
class Known:
    """What settings are judged by: the recipe, verl's config without it, the annotations of verl's keys, the groups."""

    config: DictConfig
    defaults: DictConfig
    types: Mapping[str, str]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)  # such as stack, with its options

    @cached_property
    def keys(self) -> dict[str, object]:
        return keys.flatten(self.config)


def faults(settings: Sequence[str], known: Known) -> list[str]:
    """A message for each setting that cannot be applied."""
    parser = OverridesParser.create()
    return [fault for setting in settings if (fault := _fault(setting, parser, known))]


def _fault(setting: str, parser: OverridesParser, known: Known) -> str | None:
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
    if key in known.groups:
        return _choice_fault(key, override.value(), known.groups[key])
    return next(_faults_of(override, key, known), None)


def _choice_fault(group: str, choice: object, options: Sequence[str]) -> str | None:
    """The message on a choice that a group of the recipe's defaults list does not have."""
    if choice in options:
        return None
    return f"{group}: expected one of {', '.join(options)}, found {choice!r}"


def _faults_of(override: Override, key: str, known: Known) -> Iterator[str]:
    if key == "hydra" or key.startswith("hydra."):
        yield f"{key}: expected a key of the recipe; Hydra's own are set by the launcher"
    if override.is_sweep_override():
        yield f"{key}: expected one value, found several; a list is written [a,b]"
    if override.is_delete():
        if key not in known.keys:
            yield f"~{key}: expected a key that is there; {keys.suggestion(key, known.keys)}"
        elif key in keys.flatten(known.defaults):
            yield f"~{key}: expected a key that the recipe adds, found one that verl reads; give it another value"
        return
    if override.is_add() and not override.is_force_add():
        if key in known.keys and not isinstance(known.keys[key], dict):
            found = f"found it with the value {known.keys[key]!r}"
            yield f"+{key}: expected a key that is not there yet, {found}; drop the +"
    elif key not in known.keys and not override.is_force_add():
        yield (
            f"{key}: expected a key of the recipe, found none of that name; {keys.suggestion(key, known.keys)}; "
            f"a new key is written +{key}=VALUE"
        )
    value = override.value()
    if key == "launch" or key.startswith("launch."):
        yield from filter(None, [keys.launch_fault(key, value)])
    elif key in known.keys and not (isinstance(known.keys[key], dict) and isinstance(value, dict)):
        yield from filter(None, [kinds.fault(key, value, known.config, known.defaults, known.types)])
