"""Switches of the device that change nothing here but are set by the code under test."""

import types


class _Config:
    """torch.npu.config: allow_internal_format is read by code that casts to FRACTAL_NZ."""

    def __init__(self):
        self.allow_internal_format = True


config = _Config()
matmul = types.SimpleNamespace(allow_hf32=False)
conv = types.SimpleNamespace(allow_hf32=True)

_options = {}
_jit_compile = False


def set_option(option) -> None:
    """Remember options of the device."""
    _options.update(option)


def set_compile_mode(jit_compile=False) -> None:
    """Choose between compiled and binary operators; there is one kind here."""
    global _jit_compile
    _jit_compile = bool(jit_compile)


def is_jit_compile_false() -> bool:
    """Whether binary operators are chosen."""
    return not _jit_compile


def set_sync_debug_mode(debug_mode) -> None:
    """Warn of or refuse synchronisations: not emulated."""


def get_sync_debug_mode() -> int:
    """Off."""
    return 0
