"""torch.npu.FloatTensor and the like: Megatron's Float16Module asks isinstance(x, torch.cuda.BFloat16Tensor)."""

import torch

DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


class TensorType(type):
    """A type that only tests and makes npu tensors of one dtype; its instances are plain tensors."""

    def __instancecheck__(cls, value):
        return isinstance(value, torch.Tensor) and value.device.type == "npu" and value.dtype is cls.dtype

    def __call__(cls, *arguments, size=None):
        if size is not None:
            return torch.empty(size, dtype=cls.dtype, device="npu")
        if arguments and all(isinstance(x, int) for x in arguments):
            return torch.empty(arguments, dtype=cls.dtype, device="npu")
        if arguments:
            return torch.tensor(*arguments, dtype=cls.dtype, device="npu")
        return torch.empty(0, dtype=cls.dtype, device="npu")


TYPES = {
    f"{name}Tensor": TensorType(f"{name}Tensor", (), {"dtype": dtype, "__module__": "torch.npu"})
    for name, dtype in DTYPES.items()
}

_tensor_type = torch.Tensor.type


def type_name(self, dtype=None, non_blocking=False, **options):
    """Tensor.type(): "torch.npu.FloatTensor" where torch says "torch.privateuseone.FloatTensor"."""
    if dtype is not None:
        return _tensor_type(self, dtype, non_blocking, **options)
    return _tensor_type(self).replace("torch.privateuseone.", "torch.npu.")
