"""Conditions on a recipe, KEY OP VALUE, as rows of the table of problems have them."""

import re

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONDITION = re.compile(r"(?P<key>[\w.+]+) (?P<operator>=|!=|<|>) (?P<value>\S+)")
COMPARE = {"<": lambda left, right: left < right, ">": lambda left, right: left > right}


def value(config: DictConfig, key: str) -> object:
    """What a key resolves to; None where it is not there or leads nowhere."""
    try:
        return OmegaConf.select(config, key.lstrip("+"))
    except OmegaConfBaseException:
        return None


def holds(config: DictConfig, condition: str) -> bool:
    """Whether a condition holds; one on a number does not hold for what is none. Raises ValueError for another text."""
    found = CONDITION.fullmatch(condition)
    if not found:
        raise ValueError(f"{condition}: expected KEY OP VALUE with one of = != < >")
    given = value(config, found["key"])
    if found["operator"] in ("=", "!="):
        return (shown(given) == found["value"]) == (found["operator"] == "=")
    try:
        return COMPARE[found["operator"]](float(given), float(found["value"]))
    except (TypeError, ValueError):
        return False


def shown(setting: object) -> str:
    """A value as Hydra's command line has it."""
    if setting is None:
        return "null"
    return str(setting).lower() if isinstance(setting, bool) else str(setting)
