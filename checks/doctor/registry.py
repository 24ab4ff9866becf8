"""All checks on a machine: each subject's module enters its own into the table."""

from checks.doctor import (  # noqa: F401
    builds,
    cann,
    container,
    environment,
    host,
    image,
    network,
    npu,
    packages,
    ray,
    recipe,
)
from checks.doctor.check import TABLE

CHECKS = tuple(TABLE.rows.values())
