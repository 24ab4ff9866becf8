"""The hccl backend: torch's gloo on the memory of npu tensors, under torch_npu's names."""

import datetime
import functools

import npu_device
import torch.distributed as dist

DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)


class Options:
    """ProcessGroupHCCL.Options: what code sets on it is kept, the timeout is used."""

    def __init__(self, is_high_priority_stream=False):
        self.is_high_priority_stream = is_high_priority_stream
        self.hccl_config = {}
        self._timeout = self.op_timeout = DEFAULT_TIMEOUT
        self.group_id = ""


class ProcessGroupHCCL(npu_device.ProcessGroupHCCL):
    """A group of ranks over a store. Takes npu tensors only; a CPU tensor raises as on a device."""

    Options = Options

    def __init__(self, store, rank, size, options=None):
        gloo = dist.ProcessGroupGloo._Options()
        gloo._devices = [_transport()]
        gloo._timeout = (options or Options())._timeout
        super().__init__(dist.ProcessGroupGloo(store, rank, size, gloo), rank, size)


@functools.cache
def _transport():
    """What all groups of this process send through.

    Each has a thread that wakes a hundred times a second; Megatron makes dozens of groups, on eight ranks on two cores.
    """
    return dist.ProcessGroupGloo.create_default_device()


def _create(backend, options):
    """For torch.distributed: the group of a _DistributedBackendOptions, whose time limit holds."""
    chosen = Options()
    chosen._timeout = backend.timeout
    return ProcessGroupHCCL(backend.store, backend.group_rank, backend.group_size, chosen)


def is_hccl_available() -> bool:
    """Whether collectives on the npu exist: always."""
    return True


def activate() -> None:
    """Make "hccl" known to torch.distributed as the backend of npu tensors. Called once, when torch_npu is imported."""
    dist.Backend.register_backend("hccl", _create, extended_api=True, devices=["npu"])
    dist.is_hccl_available = is_hccl_available
