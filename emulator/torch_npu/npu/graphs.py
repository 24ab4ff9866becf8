"""NPUGraph: a tape. Capture notes every operator that is dispatched with its very tensors; a replay runs them again.

What a device does and the tape does too: a replay works on the memory of the capture; Python scalars and host tensors
given to NPU operators are frozen at capture; waiting for the device is refused during capture; a group of operators can
be given new arguments (graph_task_update_*), and a replay stops at an ExternalEvent until it is recorded.

Operators written in Python, such as vllm::all_reduce, are not on the tape: what they issue is. So their Python runs at
capture only, and it does not matter whether they declare what they write.

What differs: operators also run while they are noted; a device only notes them. Read in Ascend/pytorch v2.7.1
(npu/graphs.py, csrc/core/npu/NPUGraph.cpp).
"""

import dataclasses
import gc
import itertools
import os
import threading
import time

import npu_device
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .. import trace

_pool_numbers = itertools.count(1)
_thread = threading.local()
_stopped = []  # (event, steps) of replays that wait for an ExternalEvent

# namespaces whose operators are work for the device; those of others are Python that issues such work
_COLLECTIVES = {"c10d", "_c10d_functional"}
_TORCH_NAMESPACES = {"aten", "prims"} | _COLLECTIVES
_NPU_NAMESPACES = {"npu", "atb", "_C_ascend", "mindspeed_extension"}
_NPU = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
_HOST_SYNC_NAMES = {"aten::item", "aten::is_nonzero", "aten::equal", "aten::allclose"}
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}
_HOST_SYNC_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


@dataclasses.dataclass
class _Call:
    """One operator; outputs holds the tensors it made at capture, None for those that alias an argument."""

    operator: torch._ops.OpOverload
    args: tuple
    kwargs: dict
    outputs: list

    def run(self):
        result = self.operator(*self.args, **self.kwargs)
        _wait_for_collective(self.operator, result)
        for old, new in zip(self.outputs, _tensors(result), strict=True):
            if old is not None and old.data_ptr() != new.data_ptr():
                old.copy_(new)


class TaskGroup(list):
    """The handle that graph_task_group_end returns: the part of a tape that can be renewed."""


@dataclasses.dataclass
class _Wait:
    event: object


@dataclasses.dataclass
class _Reset:
    event: object


class NPUGraph:
    """A captured piece of work."""

    def __init__(self):
        self._tape, self._pool, self._captured = TaskGroup(), None, False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        """Note from here on what this thread dispatches. RuntimeError where a device refuses it."""
        if os.environ.get("TASK_QUEUE_ENABLE") == "2":
            raise RuntimeError(
                "Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture, please export TASK_QUEUE_ENABLE=1/0."
            )
        if self._captured:
            raise RuntimeError(
                "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if torch._C._accelerator_getStream(npu_device.current_device()).stream_id == 0:
            raise RuntimeError(
                "NPU graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        self._pool = graph_pool_handle() if pool is None else pool
        self._recorder = _Recorder(self._tape)
        self._recorder.__enter__()

    def capture_end(self, failed=False):
        """The tape is complete; after a failure it is dropped."""
        recorder, self._recorder = self._recorder, None
        recorder.__exit__(None, None, None)
        if failed or len(recorder.groups) > 1:
            self._tape = TaskGroup()
            if not failed:
                raise RuntimeError("The capture ended inside a task group: graph_task_group_end is missing.")
            return
        self._captured = True
        trace.count("graphs.captured")

    def replay(self):
        """Run the tape again."""
        if not self._captured:
            raise RuntimeError("Called NPUGraph::replay without a preceding successful capture.")
        check_not_waiting("NPUGraph.replay")
        trace.count("graphs.replayed")
        _advance(_steps(self._tape))

    def reset(self):
        """Drop the tape and what it holds."""
        self._tape, self._captured = TaskGroup(), False

    def pool(self):
        """Identity of the memory pool."""
        if not self._captured:
            raise RuntimeError("Called NPUGraph::pool() without a preceding successful capture.")
        return self._pool


class graph:
    """Context manager: captures what happens inside into an NPUGraph, on a side stream."""

    default_capture_stream = None

    def __init__(self, npu_graph, pool=None, stream=None, auto_dispatch_capture=False, capture_error_mode="global"):
        if auto_dispatch_capture:
            raise NotImplementedError("The emulated NPU captures with auto_dispatch_capture=False only.")
        from . import streams

        if graph.default_capture_stream is None:
            graph.default_capture_stream = streams.Stream()
        self.npu_graph, self.pool, self.capture_error_mode = npu_graph, pool, capture_error_mode
        self.stream_context = streams.stream(stream if stream is not None else graph.default_capture_stream)

    def __enter__(self):
        torch.npu.synchronize()
        gc.collect()
        torch.npu.empty_cache()
        self.stream_context.__enter__()
        try:
            self.npu_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self.stream_context.__exit__(None, None, None)
            raise

    def __exit__(self, error_type, error, traceback):
        self.npu_graph.capture_end(failed=error_type is not None)
        self.stream_context.__exit__(None, None, None)


def graph_pool_handle() -> tuple[int, int]:
    """A new pool identity. Pools share nothing here."""
    return (0, next(_pool_numbers))


def is_current_stream_capturing() -> bool:
    """Whether this thread captures."""
    return bool(_recorders())


def graph_task_group_begin(stream) -> None:
    """What is captured from here on can be renewed later."""
    recorder = _capturing("graph_task_group_begin")
    group = TaskGroup()
    recorder.groups[-1].append(group)
    recorder.groups.append(group)


def graph_task_group_end(stream) -> TaskGroup:
    """The group is complete; returns its handle."""
    recorder = _capturing("graph_task_group_end")
    if len(recorder.groups) < 2:
        raise RuntimeError("graph_task_group_end expected a group that graph_task_group_begin opened, found none.")
    return recorder.groups.pop()


def graph_task_update_begin(stream, handle) -> None:
    """The operators issued until graph_task_update_end take the place of the group's. They do not run now."""
    recorder = _Recorder(TaskGroup(), execute=False)
    recorder.handle = handle
    recorder.__enter__()


def graph_task_update_end(stream) -> None:
    """The group has its new arguments. RuntimeError if other operators were issued than those captured."""
    recorder = _recorders()[-1] if _recorders() else None
    handle = getattr(recorder, "handle", None)
    if handle is None:
        raise RuntimeError("graph_task_update_end expected a preceding graph_task_update_begin, found none.")
    recorder.__exit__(None, None, None)
    captured, issued = _names(handle), _names(recorder.groups[0])
    if captured != issued:
        raise RuntimeError(f"The update of a task group must issue the operators captured, {captured}; found {issued}.")
    handle[:] = recorder.groups[0]


def record_wait(event) -> None:
    """ExternalEvent.wait: a point on the tape; outside a capture the event must be recorded already."""
    if _recorders():
        _recorders()[-1].groups[-1].append(_Wait(event))
    elif not event.recorded:
        raise RuntimeError("A stream waits for an ExternalEvent that nothing has recorded: on a device this hangs.")


def record_reset(event) -> bool:
    """ExternalEvent.reset: a point on the tape. False outside a capture."""
    if _recorders():
        _recorders()[-1].groups[-1].append(_Reset(event))
    return bool(_recorders())


def resume(event) -> None:
    """The event was recorded: go on with the replays that wait for it."""
    waiting = [steps for awaited, steps in _stopped if awaited is event]
    _stopped[:] = [(awaited, steps) for awaited, steps in _stopped if awaited is not event]
    for steps in waiting:
        _advance(steps)


def check_not_waiting(what) -> None:
    """Raise if a replay is stopped: a device would wait for ever."""
    if _stopped:
        raise RuntimeError(
            f"{what} comes while a replayed graph waits for {len(_stopped)} ExternalEvent(s) nothing has recorded: "
            "on a device this hangs. Update the graph's task groups and record their events right after the replay."
        )


def check_not_capturing(what) -> None:
    """Raise what a device says when a captured stream is to be waited for."""
    if _recorders():
        raise RuntimeError(_device_message(what))


def _device_message(what, call="c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream)", code=107027):
    stamp = time.strftime("%Y-%m-%d-%H:%M:%S")
    where = f"PID:{os.getpid()}, Device:{npu_device.current_device()}, RankID:{os.environ.get('RANK', -1)}"
    return (
        f"{what}: NPU function error: {call}, error code is {code}\n"
        f"[ERROR] {stamp} ({where}) ERR00100 PTA call acl api failed.\n"
        "EE9999: Inner Error! Not allow to synchronize captured-stream.\n"
        f"{what} waits for the device while a graph is captured. Keep it outside of the captured region."
    )


class _Recorder(TorchDispatchMode):
    """Puts each dispatched operator on the innermost open group."""

    def __init__(self, tape, execute=True):
        super().__init__()
        self.groups, self.execute = [tape], execute

    def __enter__(self):
        _recorders().append(self)
        return super().__enter__()

    def __exit__(self, *error):
        _recorders().remove(self)
        return super().__exit__(*error)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace not in _TORCH_NAMESPACES | _NPU_NAMESPACES:
            with _Nested(self):
                return operator.redispatch(_NPU, *args, **kwargs)
        _refuse_host_sync(operator, args, kwargs)
        frozen_args, frozen_kwargs = _frozen(operator, args, kwargs)
        if self.execute or not operator._schema.is_mutable:
            result = operator(*args, **kwargs)
        else:
            result = _written(operator, args, kwargs)
        made = _made(result, args, kwargs)
        if _belongs_on_tape(operator, args, kwargs, made):
            self.groups[-1].append(_Call(operator, frozen_args, frozen_kwargs, made))
            trace.count("graphs.recorded")
        return result


class _Nested:
    """Context manager for an operator written in Python: the recorder, which is off while it is called, sees inside."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __enter__(self):
        TorchDispatchMode.__enter__(self.recorder)

    def __exit__(self, *error):
        TorchDispatchMode.__exit__(self.recorder, *error)


def _recorders():
    if not hasattr(_thread, "recorders"):
        _thread.recorders = []
    return _thread.recorders


def _capturing(what):
    if not _recorders():
        raise RuntimeError(f"{what} expected a graph capture in this thread, found none.")
    return _recorders()[-1]


def _steps(tape):
    """Run a tape; yields each event that the replay has to wait for."""
    for entry in list(tape):
        if isinstance(entry, _Wait):
            while not entry.event.recorded:
                yield entry.event
        elif isinstance(entry, _Reset):
            entry.event.recorded = False
        elif isinstance(entry, TaskGroup):
            yield from _steps(entry)
        else:
            with torch.inference_mode():  # outputs made in inference mode may be written in that mode only
                entry.run()


def _advance(steps):
    for event in steps:
        _stopped.append((event, steps))
        return


def _tensors(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _names(group):
    return [str(entry.operator) for entry in group if isinstance(entry, _Call)]


def _made(result, args, kwargs):
    """The result's tensors, None in place of those that lie in an argument's memory."""
    before = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
    return [None if t.untyped_storage()._cdata in before else t for t in _tensors(result)]


def _belongs_on_tape(operator, args, kwargs, made):
    """Everything on the device but views and memory without content."""
    if operator._schema.name.startswith(("aten::empty", "aten::new_empty")):
        return False
    if not any(t is not None and t.device.type == "npu" for t in (*made, *_tensors((args, kwargs)))):
        return False
    return operator.namespace in _COLLECTIVES or operator._schema.is_mutable or any(t is not None for t in made)


def _frozen(operator, args, kwargs):
    """Arguments as they are at capture: an NPU operator reads its host tensors once, when it is launched."""
    if operator.namespace in _TORCH_NAMESPACES:
        return args, kwargs
    return tree_map(_copy_of_host, (tuple(args), kwargs))


def _copy_of_host(value):
    return value.clone() if isinstance(value, torch.Tensor) and value.device.type == "cpu" else value


def _written(operator, args, kwargs):
    """What an operator that was not run returns: the arguments it writes."""
    schema = operator._schema
    if not schema.returns:
        return None
    given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    written = [given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return written[0] if len(written) == 1 else tuple(written)


def _wait_for_collective(operator, result):
    """Collectives run in the background; the waiting of the captured code is not on the tape."""
    if operator.namespace == "c10d":
        for work in tree_leaves(result):
            if isinstance(work, torch.ScriptObject):
                torch._C._distributed_c10d.Work.unbox(work).wait()
    elif operator.namespace == "_c10d_functional":
        for tensor in _tensors(result):
            torch.ops._c10d_functional.wait_tensor(tensor)


def _refuse_host_sync(operator, args, kwargs):
    """Raise if the operator's result, or its shape, is needed on the host."""
    name = operator._schema.name
    if name in ("aten::copy_", "aten::_to_copy", "aten::to"):
        if _blocking_copy_to_host(name, args, kwargs):
            raise RuntimeError(_device_message(name))
        return
    if name in _INDEXING:
        waits = any(
            t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1])
        )  # torch_npu turns masks into numbers
    else:
        waits = name in _HOST_SYNC_NAMES or any(tag in operator.tags for tag in _HOST_SYNC_TAGS)
    if waits and any(t.device.type == "npu" for t in _tensors((args, kwargs))):
        raise RuntimeError(_device_message(name))


def _blocking_copy_to_host(name, args, kwargs):
    if name == "aten::copy_":
        target, source = args[0].device.type, args[1]
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        devices = [a for a in (*args[1:], kwargs.get("device")) if isinstance(a, torch.device)]
        target, source = (devices[0].type if devices else "npu"), args[0]
        non_blocking = kwargs.get("non_blocking", False)
    return target == "cpu" and source.device.type == "npu" and not non_blocking
