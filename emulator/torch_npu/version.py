"""Version of the torch_npu that is emulated."""

from . import settings

__version__ = settings.torch_npu_version()
