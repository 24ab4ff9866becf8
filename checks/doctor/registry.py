"""All checks on a machine: each subject's module enters its own into the table."""

from checks.doctor import builds, cann, container, environment, host, network, npu, packages, ray, recipe  # noqa: F401
from checks.doctor.check import TABLE

CHECKS = tuple(TABLE.rows.values())
