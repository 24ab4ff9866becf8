"""acl.rt: devices and copies."""

import ctypes
import functools
import importlib.util
from pathlib import Path

MEMCPY_KINDS = {0: "host to host", 1: "host to device", 2: "device to host", 3: "device to device"}
SUCCESS, INVALID_PARAM = 0, 107000


@functools.cache
def settings():
    """torch_npu.settings without torch_npu, whose import brings torch."""
    path = Path(__file__).resolve().parent.parent / "torch_npu" / "settings.py"
    spec = importlib.util.spec_from_file_location("npu_emulator_settings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def get_device_count() -> tuple[int, int]:
    """(devices of the machine, status)."""
    return settings().installed_devices(), SUCCESS


def memcpy(dst, dest_max, src, count, kind) -> int:
    """Copy bytes between addresses of the host or the device; returns a status.

    dest_max: room at dst in bytes. kind: MEMCPY_KINDS. A pointer on the wrong side for the kind is refused.
    """
    import npu_device

    if count > dest_max or kind not in MEMCPY_KINDS:
        return INVALID_PARAM
    npu_device.synchronize()
    target, source = npu_device.host_pointer(dst), npu_device.host_pointer(src)
    if (target != dst, source != src) != (kind in (1, 3), kind in (2, 3)):
        return INVALID_PARAM
    ctypes.memmove(target, source, count)
    return SUCCESS
