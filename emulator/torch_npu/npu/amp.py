"""torch.npu.amp: torch's own autocast and scaler, for the npu."""

import functools

import torch
from torch.amp import GradScaler as _GradScaler

autocast = functools.partial(torch.autocast, "npu")


class GradScaler(_GradScaler):
    """torch's scaler on the npu."""

    def __init__(self, *args, **kwargs):
        super().__init__("npu", *args, **kwargs)


def get_amp_supported_dtype() -> list:
    """Types that autocast takes."""
    return [torch.float16, torch.bfloat16, torch.float32]


def is_autocast_enabled() -> bool:
    """Whether autocast is on for the npu."""
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enabled) -> None:
    """Switch autocast for the npu."""
    torch.set_autocast_enabled("npu", enabled)


def get_autocast_dtype():
    """The type to which autocast converts."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype) -> None:
    """Set the type to which autocast converts."""
    torch.set_autocast_dtype("npu", dtype)


def is_bf16_supported(including_emulation=True) -> bool:
    """Atlas A2 and A3 have bfloat16."""
    return True
