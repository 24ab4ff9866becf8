"""The tape of a captured graph: what is noted at capture and how it runs at replay.

See `graphs` for what it emulates. An entry is an operator with its very tensors, a point that waits for an
ExternalEvent or resets one, or a group of entries that can be renewed.
"""

import contextlib
import dataclasses
import threading

import npu_device
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .. import races, trace
from . import host_sync

# namespaces whose operators are work for the device; those of others are Python that issues such work
_COLLECTIVES = {"c10d", "_c10d_functional"}
_TORCH_NAMESPACES = {"aten", "prims"} | _COLLECTIVES
_NPU_NAMESPACES = {"npu", "atb", "_C_ascend", "mindspeed_extension"}
_NPU = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

_thread = threading.local()
_stopped = []  # (event, steps, stream) of replays that wait for an ExternalEvent


@dataclasses.dataclass
class Call:
    """One operator; outputs holds the tensors it made at capture, None for those that alias an argument."""

    operator: torch._ops.OpOverload
    args: tuple
    kwargs: dict
    outputs: list

    def run(self):
        name = f"{self.operator._schema.name} (in a replayed graph)"
        with races.named(name) if npu_device.races_on() else contextlib.nullcontext():
            self._run()

    def _run(self):
        result = self.operator(*self.args, **self.kwargs)
        _wait_for_collective(self.operator, result)
        for old, new in zip(self.outputs, _tensors(result), strict=True):
            if old is not None and old.data_ptr() != new.data_ptr():
                old.copy_(new)


class TaskGroup(list):
    """The handle that graph_task_group_end returns: the part of a tape that can be renewed."""


@dataclasses.dataclass
class Wait:
    event: object


@dataclasses.dataclass
class Reset:
    event: object


class Recorder(TorchDispatchMode):
    """Puts each dispatched operator on the innermost open group."""

    def __init__(self, tape, execute=True):
        super().__init__()
        self.groups, self.execute = [tape], execute

    def __enter__(self):
        recorders().append(self)
        return super().__enter__()

    def __exit__(self, *error):
        recorders().remove(self)
        return super().__exit__(*error)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace not in _TORCH_NAMESPACES | _NPU_NAMESPACES:
            with _Nested(self):
                return operator.redispatch(_NPU, *args, **kwargs)
        host_sync.refuse(operator, args, kwargs)
        frozen_args, frozen_kwargs = _frozen(operator, args, kwargs)
        if self.execute:
            result = operator(*args, **kwargs)
        elif not operator._schema.is_mutable:
            with races.named(""):  # a device only takes its arguments
                result = operator(*args, **kwargs)
        else:
            result = _written(operator, args, kwargs)
        made = _made(result, args, kwargs)
        if _belongs_on_tape(operator, args, kwargs, made):
            self.groups[-1].append(Call(operator, frozen_args, frozen_kwargs, made))
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


def recorders():
    """The recorders of this thread, the innermost last."""
    if not hasattr(_thread, "recorders"):
        _thread.recorders = []
    return _thread.recorders


def run(tape) -> None:
    """Run a tape on the current stream, up to the first event that has to be waited for."""
    _advance(_steps(tape), torch._C._accelerator_getStream(npu_device.current_device()))


def record_wait(event) -> None:
    """ExternalEvent.wait: a point on the tape; outside a capture the event must be recorded already."""
    if recorders():
        recorders()[-1].groups[-1].append(Wait(event))
    elif not event.recorded:
        raise RuntimeError("A stream waits for an ExternalEvent that nothing has recorded: on a device this hangs.")
    else:
        event.order()


def record_reset(event) -> bool:
    """ExternalEvent.reset: a point on the tape. False outside a capture."""
    if recorders():
        recorders()[-1].groups[-1].append(Reset(event))
    return bool(recorders())


def resume(event) -> None:
    """The event was recorded: go on with the replays that wait for it."""
    waiting = [entry for entry in _stopped if entry[0] is event]
    _stopped[:] = [entry for entry in _stopped if entry[0] is not event]
    for _, steps, stream in waiting:
        _advance(steps, stream)


def check_not_waiting(what) -> None:
    """Raise if a replay is stopped: a device would wait for ever."""
    if _stopped:
        raise RuntimeError(
            f"{what} comes while a replayed graph waits for {len(_stopped)} ExternalEvent(s) nothing has recorded: "
            "on a device this hangs. Update the graph's task groups and record their events right after the replay."
        )


def check_not_capturing(what) -> None:
    """Raise what a device says when a captured stream is to be waited for."""
    if recorders():
        raise RuntimeError(host_sync.message(what))


def names(group) -> list[str]:
    """The operators of a group."""
    return [str(entry.operator) for entry in group if isinstance(entry, Call)]


def _steps(tape):
    """Run a tape; yields each event that the replay has to wait for."""
    for entry in list(tape):
        if isinstance(entry, Wait):
            while not entry.event.recorded:
                yield entry.event
            entry.event.order()
        elif isinstance(entry, Reset):
            entry.event.recorded = False
        elif isinstance(entry, TaskGroup):
            yield from _steps(entry)
        else:
            with torch.inference_mode():  # outputs made in inference mode may be written in that mode only
                entry.run()


def _advance(steps, stream):
    """Go on with a replay, on its stream, up to the next event that has to be waited for."""
    before = torch._C._accelerator_getStream(stream.device_index)
    torch._C._accelerator_setStream(stream)
    try:
        event = next(steps, None)
    finally:
        torch._C._accelerator_setStream(before)
    if event is not None:
        _stopped.append((event, steps, stream))


def _tensors(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


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
