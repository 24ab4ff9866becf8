"""torch_npu.profiler: accepts what the real one accepts and measures nothing."""

import enum

from torch.profiler import ProfilerAction, schedule  # noqa: F401

from . import dynamic_profile  # noqa: F401


class ProfilerActivity(enum.Enum):
    CPU = 0
    NPU = 1


class ProfilerLevel(enum.Enum):
    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AiCMetrics(enum.Enum):
    AiCoreNone = "ACL_AICORE_NONE"
    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"


class ExportType(enum.Enum):
    Text = "text"
    Db = "db"


class _ExperimentalConfig:
    """Options of a profile; kept, not used."""

    def __init__(self, **options):
        self.options = options


def tensorboard_trace_handler(dir_name=None, worker_name=None, analyse_flag=True, async_mode=False):
    """What to do with a finished profile: nothing."""
    return lambda profile: None


class profile:
    """A profile of a span of work. Steps are counted and nothing is measured."""

    def __init__(self, **options):
        self.options, self.step_num = options, 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def start(self):
        """Begin."""

    def stop(self):
        """End; the handler is called."""
        handler = self.options.get("on_trace_ready")
        if handler is not None:
            handler(self)

    def step(self):
        """The next step begins."""
        self.step_num += 1

    def export_chrome_trace(self, path):
        """Refused: an empty trace would look like one."""
        raise NotImplementedError("The emulated NPU measures no times, so there is no trace to export.")


_KinetoProfile = profile
