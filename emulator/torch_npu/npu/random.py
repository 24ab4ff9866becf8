"""Random state of the devices: one generator each."""

import npu_device
import torch

from . import devices


def default_generator(device="npu") -> torch.Generator:
    """The generator of a device. Only its number counts, as with torch_npu: Megatron asks for that of "cuda"."""
    devices.init()
    index = device if isinstance(device, int) else torch.device(device).index
    return npu_device.default_generator(-1 if index is None else index)


def get_rng_state(device="npu") -> torch.Tensor:
    """The state of a device's generator, a CPU tensor of bytes."""
    return default_generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [get_rng_state(i) for i in range(devices.device_count())]


def set_rng_state(new_state, device="npu") -> None:
    """Set the state of a device's generator."""
    default_generator(device).set_state(new_state)


def set_rng_state_all(new_states) -> None:
    """Set the states of all devices."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def manual_seed(seed) -> None:
    """Seed the current device. Without devices nothing happens."""
    if devices.is_available():
        default_generator().manual_seed(int(seed))


def manual_seed_all(seed) -> None:
    """Seed all devices."""
    for i in range(devices.device_count()):
        default_generator(i).manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with a random number."""
    default_generator().seed()


def seed_all() -> None:
    """Seed all devices with one random number."""
    if devices.is_available():
        seed()
        manual_seed_all(initial_seed())


def initial_seed() -> int:
    """The seed of the current device."""
    return default_generator().initial_seed()
