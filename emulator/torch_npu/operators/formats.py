"""Storage formats: npu_format_cast, npu_format_cast_, get_npu_format.

Signatures: Ascend/pytorch v7.2.0, npu_native_functions.yaml.

A device stores a tensor in format FRACTAL_NZ (29) in tiles. The emulator keeps every tensor in rows and only
remembers the format of each storage, so values are right whatever happens to them. What it does find: a write into a
*part* of such a storage (a weight loader that copies one expert or one half of a fused weight), whose result on a
device is undefined. It is counted in the trace as `nz_partial_writes`. Seen are `Tensor.copy_` and `tensor[...] =
value`, from the first cast to FRACTAL_NZ on; a process that never casts runs torch's own methods.
"""

import functools
import weakref

import torch

from .. import trace
from .registry import check, gradient, operator

ND = 2
FRACTAL_NZ = 29
KNOWN = {0: "NCHW", ND: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", FRACTAL_NZ: "FRACTAL_NZ"}

_formats: dict[int, int] = {}
"""Address of a storage -> format, for storages that are not ND."""


def format_of(tensor: torch.Tensor) -> int:
    """The format of the tensor's storage."""
    return _formats.get(tensor.untyped_storage().data_ptr(), ND)


def _set_format(tensor: torch.Tensor, acl_format: int) -> None:
    check(
        acl_format in KNOWN,
        f"npu_format_cast: acl_format must be one of {', '.join(f'{n} ({name})' for n, name in KNOWN.items())}, but is "
        f"{acl_format}",
    )
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    if acl_format == ND:
        _formats.pop(address, None)
        return
    if address not in _formats:
        weakref.finalize(storage, _formats.pop, address, None)
    _formats[address] = acl_format
    if acl_format == FRACTAL_NZ:
        _watch_writes()


def _cast(tensor: torch.Tensor, acl_format: int) -> torch.Tensor:
    if format_of(tensor) == acl_format:
        return tensor
    result = tensor.clone(memory_format=torch.contiguous_format)
    _set_format(result, acl_format)
    return result


def _like(self, *_):
    return torch.empty_like(self)


@operator(
    "npu_format_cast(Tensor self, int acl_format, int? customize_dtype=None) -> Tensor",
    meta=_like,
    on_device=True,
)
def npu_format_cast(self, acl_format, customize_dtype):
    """A copy in another format, or self where it has it already."""
    return _cast(self, acl_format)


@operator(
    "npu_format_cast.Tensor(Tensor self, Tensor dst, int? customize_dtype=None) -> Tensor", meta=_like, on_device=True
)
def _format_cast_as(self, dst, customize_dtype):
    """A copy in the format of dst."""
    return _cast(self, format_of(dst))


@gradient("npu_format_cast", inputs=("self",))
def _format_cast_gradient(saved, grad):
    return {"self": grad}


@operator(
    "npu_format_cast_.acl_format(Tensor(a!) self, int acl_format, int? customize_dtype=None) -> Tensor(a!)",
    meta=lambda self, *_: self,
    on_device=True,
)
def _format_cast_in_place(self, acl_format, customize_dtype):
    """Changes the format of self."""
    _set_format(self, acl_format)
    return self


@operator(
    "npu_format_cast_(Tensor(a!) self, Tensor src, int? customize_dtype=None) -> Tensor(a!)",
    meta=lambda self, *_: self,
    on_device=True,
)
def _format_cast_in_place_as(self, src, customize_dtype):
    """Gives self the format and the values of src."""
    self.copy_(src)
    _set_format(self, format_of(src))
    return self


@operator("get_npu_format(Tensor self) -> int", meta=lambda self: ND, on_device=True)
def get_npu_format(self):
    """The number of the format."""
    return format_of(self)


def write_lands_in_part(target: torch.Tensor) -> bool:
    """Whether writing all of `target` would write into a part of a FRACTAL_NZ storage."""
    if not _formats or target.device.type != "npu":
        return False
    try:
        storage = target.untyped_storage()
        tiled = _formats.get(storage.data_ptr()) == FRACTAL_NZ
    except RuntimeError:  # a tensor without memory of its own: Dynamo traces
        return False
    return tiled and target.numel() * target.element_size() < storage.nbytes()


@functools.cache
def _watch_writes() -> None:
    """Wraps the two methods through which weight loaders write."""
    copy, set_item = torch.Tensor.copy_, torch.Tensor.__setitem__

    @functools.wraps(copy)
    def counted_copy(self, *args, **kwargs):
        if write_lands_in_part(self):
            trace.count("nz_partial_writes")
        return copy(self, *args, **kwargs)

    @functools.wraps(set_item)
    def counted_set_item(self, index, value):
        if _formats and self.device.type == "npu" and write_lands_in_part(self[index]):
            trace.count("nz_partial_writes")
        return set_item(self, index, value)

    torch.Tensor.copy_, torch.Tensor.__setitem__ = counted_copy, counted_set_item
