"""torch_npu for machines without an NPU: its Python names on an emulated device, the C++ extension npu_device.

`import torch` loads it through the entry point torch.backends of its distribution, as the real one is loaded. Refuses
to start beside an NPU or a real torch_npu (see guard).
"""


def _autoload():
    """Entry point of torch.backends: importing this package is all there is to do.

    Defined first: `import torch_npu` imports torch, which asks for this name while the package is half imported.
    """


# ruff: noqa: E402
import pathlib

from . import guard

guard.check(pathlib.Path(__file__).parent.parent)

import torch

from . import backend, npu, settings, trace  # noqa: F401
from .version import __version__  # noqa: F401

backend.activate()

from . import _C, contrib, distributed, op_plugin, operators, profiler, utils  # noqa: F401

globals().update(operators.registry.EXPORTS | operators.refused.exports())
unsupported_dtype = [torch.quint8, torch.quint4x2, torch.quint2x4, torch.qint32, torch.qint8]

from . import drift

distributed.activate()
drift.activate()
trace.start()
