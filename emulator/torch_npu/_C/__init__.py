"""Names of torch_npu's compiled module that code imports."""

from ..npu.devices import get_soc_version as _npu_get_soc_version  # noqa: F401
from ..npu.tape import TaskGroup as _NPUTaskGroupHandle  # noqa: F401
from . import _distributed_c10d  # noqa: F401
