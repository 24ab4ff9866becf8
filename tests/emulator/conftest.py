"""torch first: it loads the emulated NPU by itself, and only then can `npu_device` be imported by its name."""

import torch  # noqa: F401
