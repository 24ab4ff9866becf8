"""CANN's acl, as far as Ray's search for devices and vllm-ascend's sleep mode use it.

Without torch: Ray imports it alone.
"""

from . import rt


def get_soc_name() -> str:
    """Name of the chip."""
    return rt.settings().soc_name()
