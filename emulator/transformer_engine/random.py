"""Random state of the NPU for megatron.core.tensor_parallel.random.

Megatron's own functions queue the change until CUDA is initialised, which never happens here, and address the
generators of torch.cuda: the tracker would silently fork nothing.
"""

import torch


def _generator(device) -> torch.Generator:
    """Generator of a device given as Megatron gives it: an index (-1: current), "cuda", "npu:1" or a torch.device."""
    index = device if isinstance(device, int) else torch.device(str(device).replace("cuda", "npu")).index
    return torch.npu.default_generators[torch.npu.current_device() if index in (None, -1) else index]


def _refuse_graphs(graph_safe: bool):
    if graph_safe:
        raise ValueError("use_cudagraphable_rng=True is not supported on the emulated NPU; leave it False")


def get_rng_state(device="npu", clone: bool = False, graph_safe: bool = False) -> torch.Tensor:
    """State of the device's generator, uint8 on the CPU."""
    _refuse_graphs(graph_safe)
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device=-1, graph_safe: bool = False) -> None:
    """Sets the state of the device's generator."""
    _refuse_graphs(graph_safe)
    _generator(device).set_state(new_state)
