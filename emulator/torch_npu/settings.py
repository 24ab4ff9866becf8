"""What the environment says about the emulated NPU. Every value has a default; an unusable value names itself.

The readers look at this process's environment, or at the one they are given: a run's before it is started.
"""

import os
from collections.abc import Mapping

DEVICES = "NPU_EMULATOR_DEVICES"
MEMORY_GIB = "NPU_EMULATOR_MEMORY_GIB"
POISON = "NPU_EMULATOR_POISON"
DEFER = "NPU_EMULATOR_DEFER"
RACES = "NPU_EMULATOR_RACES"
TRACE = "NPU_EMULATOR_TRACE"
SOC = "NPU_EMULATOR_SOC"
CANN = "NPU_EMULATOR_CANN"
TORCH_NPU = "NPU_EMULATOR_TORCH_NPU"
ENGINE_RANKS = "NPU_EMULATOR_ENGINE_RANKS"

POISON_LEVELS = {"off": 0, "fresh": 1, "freed": 2}
RACE_LEVELS = {"off": 0, "warn": 1, "error": 2}

# soc version as torch_npu reports it -> name; 22x are Atlas A2 devices, 25x Atlas A3
SOC_NAMES = {223: "Ascend910B2", 250: "Ascend910_9391"}


class SettingError(RuntimeError):
    """An environment variable of the emulator has a value that cannot be used."""


def _number(environment, name, default, kind):
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise SettingError(f"{name} must be a number above 0, found {text!r}. Unset it for the default, {default}.")
    return value


def _level(environment, name, levels):
    text = environment.get(name, "").strip() or "off"
    if text not in levels:
        raise SettingError(f"{name} must be one of {', '.join(levels)}, found {text!r}. Unset it for 'off'.")
    return levels[text]


def installed_devices(environment: Mapping[str, str] = os.environ) -> int:
    """Devices of the machine, before ASCEND_RT_VISIBLE_DEVICES hides some."""
    return _number(environment, DEVICES, 8, int)


def memory_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Memory of one device in bytes."""
    return int(_number(environment, MEMORY_GIB, 64.0, float) * 2**30)


def poison_level(environment: Mapping[str, str] = os.environ) -> int:
    """0 off, 1 fresh memory is filled with 0xFF (NaN in every float type), 2 freed memory too."""
    return _level(environment, POISON, POISON_LEVELS)


def race_level(environment: Mapping[str, str] = os.environ) -> int:
    """What a use of memory without order between two streams does: 0 nothing, 1 it is counted and printed, 2 raises."""
    return _level(environment, RACES, RACE_LEVELS)


def deferred_copies(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a non-blocking copy to the host lands only at the next synchronisation."""
    text = environment.get(DEFER, "").strip() or "1"
    if text not in ("0", "1"):
        raise SettingError(f"{DEFER} must be 0 or 1, found {text!r}. Unset it for 1.")
    return text == "1"


def trace_folder(environment: Mapping[str, str] = os.environ) -> str | None:
    """Folder for the trace files, None for no trace."""
    return environment.get(TRACE) or None


def soc_version(environment: Mapping[str, str] = os.environ) -> int:
    """What torch_npu.npu.get_soc_version() returns."""
    version = _number(environment, SOC, 223, int)
    if version not in SOC_NAMES:
        known = ", ".join(f"{number} ({name})" for number, name in SOC_NAMES.items())
        raise SettingError(f"{SOC} must be one of {known}, found {version}. Unset it for 223.")
    return version


def soc_name(environment: Mapping[str, str] = os.environ) -> str:
    """Name of the chip, as acl.get_soc_name() and torch.npu.get_device_name() return it."""
    return SOC_NAMES[soc_version(environment)]


def cann_version(environment: Mapping[str, str] = os.environ) -> str:
    """Version of CANN that code under test sees (torch.version.cann)."""
    return environment.get(CANN) or "8.3.RC1"


def torch_npu_version(environment: Mapping[str, str] = os.environ) -> str:
    """Version of torch_npu that code under test sees."""
    return environment.get(TORCH_NPU) or "2.7.1"


def engine_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Ranks of a rollout engine in production, for what vllm-ascend decides by their number; 0: those it has here."""
    return _number(environment, ENGINE_RANKS, 0, int)
