"""The process group under its compiled module's name."""

from ..distributed import ProcessGroupHCCL  # noqa: F401
