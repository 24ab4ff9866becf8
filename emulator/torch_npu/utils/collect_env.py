"""What is installed beside torch_npu."""

from .. import settings


def get_cann_version() -> str:
    """Version of CANN."""
    return settings.cann_version()
