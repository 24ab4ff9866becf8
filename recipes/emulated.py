"""What a recipe asks of the emulated devices: its environment, judged by the emulator's own rules."""

import importlib.util
import inspect
import os
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from omegaconf import DictConfig, OmegaConf

from recipes.command import recipe_environment
from recipes.compose import HOME

SETTINGS = HOME / "emulator" / "torch_npu" / "settings.py"


def is_emulated(config: DictConfig) -> bool:
    """Whether the recipe runs on emulated devices."""
    return OmegaConf.select(config, "launch.hardware") == "emulated"


def faults(config: DictConfig) -> Iterator[str]:
    """A message for each NPU_EMULATOR_* that cannot be used."""
    settings, environment = _settings(), _environment(config)
    for name, read in inspect.getmembers(settings, inspect.isfunction):
        if name.startswith("_"):
            continue
        try:
            read(environment)
        except (settings.SettingError, ArithmeticError, ValueError) as error:
            yield str(error)


def devices(config: DictConfig) -> int:
    """How many devices the emulator will show."""
    return _settings().installed_devices(_environment(config))


def _environment(config: DictConfig) -> dict[str, str]:
    """The run's, as far as the emulator reads it."""
    return {**os.environ, **recipe_environment(config)}


@cache
def _settings() -> ModuleType:
    """The emulator's module of settings, loaded by its path: as a part of its package it would bring torch."""
    spec = importlib.util.spec_from_file_location("emulator_settings", SETTINGS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
