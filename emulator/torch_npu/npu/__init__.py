"""torch.npu: the device module. One module a subject; this one collects their public names, as torch_npu's does."""

import types as _types

from . import amp, devices, graphs, memory, mstx, npu_config, random, streams, tensor_types  # noqa: F401
from .amp import (  # noqa: F401
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    is_bf16_supported,
    set_autocast_dtype,
    set_autocast_enabled,
)
from .devices import (  # noqa: F401
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_soc_version,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
    utilization,
)
from .graphs import (  # noqa: F401
    NPUGraph,
    graph,
    graph_pool_handle,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
    is_current_stream_capturing,
)
from .memory import (  # noqa: F401
    MemPool,
    NPUPluggableAllocator,
    change_current_allocator,
    empty_cache,
    empty_virt_addr_cache,
    get_allocator_backend,
    ipc_collect,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from .npu_config import (  # noqa: F401
    config,
    conv,
    get_sync_debug_mode,
    is_jit_compile_false,
    matmul,
    set_compile_mode,
    set_option,
    set_sync_debug_mode,
)
from .random import (  # noqa: F401
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (  # noqa: F401
    Event,
    ExternalEvent,
    Stream,
    StreamContext,
    SyncLaunchStream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

globals().update(tensor_types.TYPES)

__all__ = sorted(
    name
    for name, value in list(globals().items())
    if not name.startswith("_") and not isinstance(value, _types.ModuleType)
)


def __getattr__(name):
    if name == "default_generators":
        return tuple(random.default_generator(i) for i in range(device_count()))
    if name == "_initialized":  # torch.utils.checkpoint keeps the random state of devices that say so
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
