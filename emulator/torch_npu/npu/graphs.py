"""NPUGraph: a tape. Capture notes every operator that is dispatched with its very tensors; a replay runs them again.

What a device does and the tape does too: a replay works on the memory of the capture; Python scalars and host tensors
given to NPU operators are frozen at capture; waiting for the device is refused during capture; a group of operators can
be given new arguments (graph_task_update_*), and a replay stops at an ExternalEvent until it is recorded.

Operators written in Python, such as vllm::all_reduce, are not on the tape: what they issue is. So their Python runs at
capture only, and it does not matter whether they declare what they write.

What differs: operators also run while they are noted; a device only notes them. Read in Ascend/pytorch v2.7.1
(npu/graphs.py, csrc/core/npu/NPUGraph.cpp).
"""

import gc
import itertools
import os

import npu_device
import torch

from .. import races, trace
from . import tape

_pool_numbers = itertools.count(1)


class NPUGraph:
    """A captured piece of work."""

    def __init__(self):
        self._tape, self._pool, self._captured = tape.TaskGroup(), None, False

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
        races.fence()
        self._recorder = tape.Recorder(self._tape)
        self._recorder.__enter__()

    def capture_end(self, failed=False):
        """The tape is complete; after a failure it is dropped."""
        recorder, self._recorder = self._recorder, None
        recorder.__exit__(None, None, None)
        races.fence()
        npu_device.forget_uploads()
        if failed or len(recorder.groups) > 1:
            self._tape = tape.TaskGroup()
            if not failed:
                raise RuntimeError("The capture ended inside a task group: graph_task_group_end is missing.")
            return
        self._captured = True
        trace.count("graphs.captured")

    def replay(self):
        """Run the tape again."""
        if not self._captured:
            raise RuntimeError("Called NPUGraph::replay without a preceding successful capture.")
        tape.check_not_waiting("NPUGraph.replay")
        trace.count("graphs.replayed")
        tape.run(self._tape)

    def reset(self):
        """Drop the tape and what it holds."""
        self._tape, self._captured = tape.TaskGroup(), False

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
    return bool(tape.recorders())


def graph_task_group_begin(stream) -> None:
    """What is captured from here on can be renewed later."""
    recorder = _capturing("graph_task_group_begin")
    group = tape.TaskGroup()
    recorder.groups[-1].append(group)
    recorder.groups.append(group)


def graph_task_group_end(stream) -> tape.TaskGroup:
    """The group is complete; returns its handle."""
    recorder = _capturing("graph_task_group_end")
    if len(recorder.groups) < 2:
        raise RuntimeError("graph_task_group_end expected a group that graph_task_group_begin opened, found none.")
    return recorder.groups.pop()


def graph_task_update_begin(stream, handle) -> None:
    """The operators issued until graph_task_update_end take the place of the group's. They do not run now."""
    recorder = tape.Recorder(tape.TaskGroup(), execute=False)
    recorder.handle = handle
    recorder.__enter__()


def graph_task_update_end(stream) -> None:
    """The group has its new arguments. RuntimeError if other operators were issued than those captured."""
    recorder = tape.recorders()[-1] if tape.recorders() else None
    handle = getattr(recorder, "handle", None)
    if handle is None:
        raise RuntimeError("graph_task_update_end expected a preceding graph_task_update_begin, found none.")
    recorder.__exit__(None, None, None)
    captured, issued = tape.names(handle), tape.names(recorder.groups[0])
    if captured != issued:
        raise RuntimeError(f"The update of a task group must issue the operators captured, {captured}; found {issued}.")
    handle[:] = recorder.groups[0]


def _capturing(what):
    if not tape.recorders():
        raise RuntimeError(f"{what} expected a graph capture in this thread, found none.")
    return tape.recorders()[-1]
