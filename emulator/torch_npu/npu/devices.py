"""Which devices exist, which is current, what they are called; first use of the device by this process.

ASCEND_RT_VISIBLE_DEVICES is read until the device is first used, as torch_npu does it: Ray sets it in a worker that may
have imported torch before.
"""

import os
import threading
import warnings
from collections import namedtuple

import npu_device

from .. import settings

DeviceProperties = namedtuple("DeviceProperties", "name total_memory L2_cache_size cube_core_num vector_core_num")

_lock = threading.RLock()
_pid = None  # of the process that used the device first; None: not used yet
_bad_fork = False


def visible_devices() -> list[int]:
    """Numbers of the devices this process may use.

    As torch_npu's _parse_visible_devices: what follows the first character that is neither digit nor comma is ignored,
    an empty value hides every device.
    """
    text = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    installed = settings.installed_devices()
    if text is None:
        return list(range(installed))
    end = next((i for i, c in enumerate(text) if not (c.isdigit() or c == ",")), len(text))
    numbers = []
    for part in text[:end].split(","):
        if not part:
            break
        number = int(part)
        if numbers and number <= numbers[-1]:
            return []  # the runtime wants ascending order
        if number >= installed:
            break
        numbers.append(number)
    return numbers


def device_count() -> int:
    """Number of devices this process sees."""
    return npu_device.device_count() if is_initialized() else len(visible_devices())


def is_available() -> bool:
    """Whether this process sees a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether this process has used the device."""
    return _pid is not None and not _bad_fork


def init() -> None:
    """Fix the visible devices. torch calls it (as _lazy_init) before the first tensor is made on the device."""
    global _pid
    if _bad_fork:
        raise RuntimeError(
            "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' "
            "start method"
        )
    with _lock:
        if _pid is None:
            from .. import races

            npu_device.init(len(visible_devices()))
            npu_device.set_budget(settings.memory_bytes())
            npu_device.set_poison(settings.poison_level())
            npu_device.set_deferred(settings.deferred_copies())
            races.activate()
            _pid = os.getpid()


def _after_fork():
    global _bad_fork
    _bad_fork = _bad_fork or _pid is not None


os.register_at_fork(after_in_child=_after_fork)


def _is_in_bad_fork() -> bool:
    return _bad_fork


def _lazy_init() -> None:
    init()


def _lazy_call(function, **_):
    """torch's random module hands its work over this way; nothing has to wait here."""
    init()
    function()


def index_of(device, optional=True) -> int:
    """Number of a device given as torch.device, string, number or None (the current one)."""
    if device is None:
        return npu_device.current_device()
    if isinstance(device, int):
        return npu_device.current_device() if device < 0 else device
    device = getattr(device, "device", device)
    device = torch_device(device)
    if device.type != "npu":
        raise ValueError(f"Expected an npu device, but got: {device}")
    return npu_device.current_device() if device.index is None else device.index


def torch_device(device):
    """torch.device of a string or torch.device."""
    import torch

    return torch.device(device)


def _checked(device) -> int:
    number = index_of(device)
    if not 0 <= number < device_count():
        raise AssertionError(f"Invalid device id {number}: this process sees {device_count()} NPU(s).")
    return number


def current_device() -> int:
    """Number of the current device of this thread."""
    init()
    return npu_device.current_device()


def set_device(device) -> None:
    """Make a device current in this thread."""
    init()
    npu_device.set_device(index_of(device))


def synchronize(device=None) -> None:
    """Wait for the device: deferred copies to the host land now."""
    from . import tape

    tape.check_not_capturing("torch.npu.synchronize")
    tape.check_not_waiting("torch.npu.synchronize")
    npu_device.synchronize(index_of(device))


class device:
    """Context manager: another device is current inside. None or a negative number changes nothing."""

    def __init__(self, device):
        unchanged = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if unchanged else index_of(device)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = current_device()
        if self.idx >= 0:
            npu_device.set_device(self.idx)

    def __exit__(self, *error):
        npu_device.set_device(self.prev_idx)
        return False


class device_of(device):
    """Context manager: the device of a tensor or storage is current inside."""

    def __init__(self, tensor):
        super().__init__(tensor.get_device() if tensor.device.type == "npu" else -1)


def can_device_access_peer(device_id, peer_device_id) -> bool:
    """All devices lie in one host's memory."""
    return _checked(device_id) != _checked(peer_device_id)


def get_device_name(device_name=None) -> str:
    """Name of the emulated chip."""
    _checked(device_name)
    return settings.soc_name()


def get_device_properties(device_name=None) -> DeviceProperties:
    """Name and memory; core counts and cache are those of an Atlas A2 and mean nothing here."""
    _checked(device_name)
    return DeviceProperties(settings.soc_name(), settings.memory_bytes(), 192 << 20, 24, 48)


def get_device_capability(device=None):
    """None: as torch_npu, for which CANN has no such thing."""
    warnings.warn("torch.npu.get_device_capability isn't implemented!", stacklevel=2)


def get_soc_version() -> int:
    """The chip as a number, see settings.SOC_NAMES."""
    return settings.soc_version()


def utilization(device=None) -> int:
    """Not measured."""
    return 0
