"""Lets code written for CUDA run on the npu, by being imported; after contrib/transfer_to_npu.py of torch_npu v2.7.1.

torch.cuda.* becomes torch.npu.*, device "cuda" becomes "npu" in factories and methods, backend "nccl" becomes "hccl".
"""

import functools

import torch
import torch.distributed as dist
import torch.distributed.device_mesh
import torch.distributed.distributed_c10d as c10d
import torch.utils._device
import torch.utils.cpp_extension

from .. import npu

FACTORIES = """
    arange as_tensor bartlett_window blackman_window empty empty_like empty_quantized empty_strided eye frombuffer
    full full_like hamming_window hann_window kaiser_window linspace load logspace normal ones ones_like rand
    rand_like randint randint_like randn randn_like randperm range scalar_tensor set_default_device
    sparse_coo_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like get_device_module
"""
TENSOR_METHODS = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros to pin_memory"
MODULE_METHODS = "to to_empty"
CUDA_FUNCTIONS = """
    get_device_properties get_device_name get_device_capability set_device synchronize mem_get_info memory_stats
    memory_summary memory_allocated max_memory_allocated reset_max_memory_allocated memory_reserved
    max_memory_reserved reset_max_memory_cached reset_peak_memory_stats default_stream can_device_access_peer
    current_stream utilization set_per_process_memory_fraction
"""
DEVICE_ARGUMENTS = ("device", "device_type", "map_location", "device_id")


def _npu(value, numbers=False):
    """The npu's name where a value names cuda; a bare number is a device only where `numbers` says so."""
    if isinstance(value, str):
        return value.replace("cuda", "npu")
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu", value.index) if value.index is not None else torch.device("npu")
    if numbers and isinstance(value, int) and not isinstance(value, bool):
        return f"npu:{value}"
    if isinstance(value, dict):
        return {_npu(k) if isinstance(k, str) else k: _npu(v) if isinstance(v, str) else v for k, v in value.items()}
    return value


def on_npu(function):
    """The function with its device arguments translated."""
    numbers = function.__name__ in MODULE_METHODS.split()

    @functools.wraps(function)
    def translated(*args, **kwargs):
        for name in DEVICE_ARGUMENTS:
            if kwargs.get(name) is not None:
                kwargs[name] = _npu(kwargs[name], numbers=True)
        return function(*(_npu(value, numbers) for value in args), **kwargs)

    return translated


def on_hccl(function):
    """The function with its backend argument translated."""

    def translate(value):
        return value.replace("nccl", "hccl").replace("cuda", "npu") if isinstance(value, str) else value

    @functools.wraps(function)
    def translated(*args, **kwargs):
        if "backend" in kwargs:
            kwargs["backend"] = translate(kwargs["backend"])
        return function(*(translate(value) for value in args), **kwargs)

    return translated


def _wrap(owner, names, wrapper=on_npu):
    for name in names.split():
        function = getattr(owner, name, None)
        if function is not None:
            setattr(owner, name, wrapper(function))


def _cuda():
    for name in npu.__all__:
        setattr(torch.cuda, name, getattr(npu, name))
    for name in ("_lazy_call", "_lazy_init", "_is_in_bad_fork"):
        setattr(torch.cuda, name, getattr(npu, name))
    torch.cuda.default_generators = npu.default_generators
    for name in (
        "manual_seed",
        "manual_seed_all",
        "get_rng_state",
        "set_rng_state",
        "get_rng_state_all",
        "initial_seed",
    ):
        setattr(torch.cuda.random, name, getattr(npu.random, name))
    for name in ("memory_allocated", "max_memory_allocated", "memory_stats", "mem_get_info", "empty_cache"):
        setattr(torch.cuda.memory, name, getattr(npu.memory, name))
    _wrap(torch.cuda, CUDA_FUNCTIONS)
    torch.cuda.DoubleTensor = npu.FloatTensor
    torch.cuda.CUDAGraph = npu.NPUGraph
    torch.cuda.amp.autocast = npu.amp.autocast
    torch.cuda.amp.GradScaler = npu.amp.GradScaler


def _tensors_and_modules():
    torch.utils._device._device_constructors()  # a cached set of the factories: it must hold the originals
    _wrap(torch, FACTORIES)
    _wrap(torch.Tensor, TENSOR_METHODS)
    _wrap(torch.nn.Module, MODULE_METHODS)
    torch.Tensor.cuda = torch.Tensor.npu
    torch.Tensor.is_cuda = torch.Tensor.is_npu
    torch.nn.Module.cuda = torch.nn.Module.npu
    torch.amp.autocast_mode.autocast.__init__ = on_npu(torch.amp.autocast_mode.autocast.__init__)
    torch.utils._device.DeviceContext.__init__ = on_npu(torch.utils._device.DeviceContext.__init__)
    torch.Generator = _Generator


class _Generator(torch.Generator):
    """torch.Generator("cuda") is one of the npu."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, _npu(device))


def _distributed():
    init_process_group = on_hccl(dist.init_process_group)
    dist.init_process_group = c10d.init_process_group = init_process_group
    c10d._new_group_with_tag = on_hccl(c10d._new_group_with_tag)
    dist.is_nccl_available = dist.is_hccl_available
    dist.Backend.default_device_backend_map.pop("cuda", None)
    dist.ProcessGroup._get_backend = on_npu(dist.ProcessGroup._get_backend)
    mesh = torch.distributed.device_mesh
    mesh.init_device_mesh = dist.init_device_mesh = on_npu(mesh.init_device_mesh)
    mesh.DeviceMesh.__init__ = on_npu(mesh.DeviceMesh.__init__)


def _script():
    """torch.jit.script does nothing, as with the real module."""
    torch.jit.script = lambda obj, optimize=None, _frames_up=0, _rcb=None, example_inputs=None: obj
    torch.jit.script_method = lambda function: function


_cuda()
_tensors_and_modules()
_distributed()
_script()
