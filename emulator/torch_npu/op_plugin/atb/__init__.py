"""Operators of the ATB library."""

from . import _atb_ops  # noqa: F401
