"""torch_npu.op_plugin: operators of the ATB library are registered with all others."""

from . import atb  # noqa: F401
