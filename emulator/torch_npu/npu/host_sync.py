"""What a device refuses while it captures: whatever makes the host wait for it, with the device's message.

Which indexing waits was read in Ascend/op-plugin 7.2.0 (utils/AdvancedIndex.cpp: a mask becomes numbers by nonzero).
"""

import os
import time

import npu_device
import torch
from torch.utils._pytree import tree_leaves

_NAMES = {"aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose"}
_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_COPIES = {"aten::copy_", "aten::_to_copy", "aten::to"}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}


def refuse(operator, args, kwargs) -> None:
    """RuntimeError if the operator's result, or its shape, is needed on the host."""
    if waits(operator, args, kwargs):
        raise RuntimeError(message(operator._schema.name))


def waits(operator, args, kwargs) -> bool:
    """Whether the host has to wait for the device to run the operator."""
    name = operator._schema.name
    if name in _COPIES:
        return _blocking_copy_to_host(name, args, kwargs)
    if name in _INDEXING:
        found = any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
    else:
        found = name in _NAMES or any(tag in operator.tags for tag in _TAGS)
    return found and any(t.device.type == "npu" for t in _tensors((args, kwargs)))


def message(what, call="c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream)", code=107027) -> str:
    """The error of torch_npu and CANN, and what to do."""
    stamp = time.strftime("%Y-%m-%d-%H:%M:%S")
    where = f"PID:{os.getpid()}, Device:{npu_device.current_device()}, RankID:{os.environ.get('RANK', -1)}"
    return (
        f"{what}: NPU function error: {call}, error code is {code}\n"
        f"[ERROR] {stamp} ({where}) ERR00100 PTA call acl api failed.\n"
        "EE9999: Inner Error! Not allow to synchronize captured-stream.\n"
        f"{what} waits for the device while a graph is captured. Keep it outside of the captured region."
    )


def _blocking_copy_to_host(name, args, kwargs):
    if name == "aten::copy_":
        target, source = args[0].device.type, args[1]
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        devices = [a for a in (*args[1:], kwargs.get("device")) if isinstance(a, torch.device)]
        target, source = (devices[0].type if devices else "npu"), args[0]
        non_blocking = kwargs.get("non_blocking", False)
    return target == "cpu" and source.device.type == "npu" and not non_blocking


def _tensors(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
