"""Submodules of torch_npu.utils that code imports."""

from . import collect_env, flops_count  # noqa: F401
