"""Makes the device known to torch: its name, torch.npu, Tensor.npu() and the like."""

import sys

import torch
import torch.utils.checkpoint  # torch 2.7.1 does not import it by itself

from . import npu, settings

SUBMODULES = ("amp", "graphs", "memory", "random", "streams")


def activate() -> None:
    """Register the device. Called once, when torch_npu is imported."""
    torch.utils.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    torch.npu = npu
    sys.modules["torch.npu"] = npu
    for name in SUBMODULES:
        sys.modules[f"torch.npu.{name}"] = getattr(npu, name)
    torch.Tensor.type = npu.tensor_types.type_name
    torch.version.cann = settings.cann_version()
    torch.nn.parameter.UninitializedTensorMixin._allowed_methods.append(torch.Tensor.npu)
    torch.utils.checkpoint.DefaultDeviceType.set_device_type("npu")
