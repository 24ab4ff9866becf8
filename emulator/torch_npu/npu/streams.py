"""Streams and events. Work runs when it is issued: a stream orders nothing; a synchronisation lands deferred copies."""

import time

import npu_device
import torch

from . import devices, tape


class Stream(torch.Stream):
    """A stream of a device (the current one by default)."""

    def __new__(cls, device=None, priority=0, **identity):
        if identity:
            return super().__new__(cls, **identity)
        devices.init()
        return super().__new__(cls, torch.device("npu", devices.index_of(device)), priority=priority)

    @property
    def npu_stream(self) -> int:
        """The stream's handle."""
        return self.stream_id

    def wait_event(self, event):
        """Work issued later to this stream waits for the event."""
        event.wait(self)

    def wait_stream(self, stream):
        """Work issued later to this stream waits for what the other stream has been given so far."""
        self.wait_event(stream.record_event())

    def record_event(self, event=None):
        """Record an event, a new one by default, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def synchronize(self):
        """Wait for the stream's work."""
        tape.check_not_capturing("aclrtSynchronizeStream")
        super().synchronize()

    def set_data_preprocess_stream(self, is_data_preprocess_stream=False):
        """A hint without effect."""

    def __repr__(self):
        return f"<torch_npu.npu.Stream device={self.device} npu_stream={self.npu_stream:#x}>"


class Event(torch.Event):
    """A point in a stream. Time is the host's clock when the event is recorded."""

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, **_):
        devices.init()
        return super().__new__(cls, "npu", enable_timing=enable_timing)

    def record(self, stream=None):
        """Record the event in a stream, the current one by default."""
        self._recorded_at = time.perf_counter()
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream=None):
        """Work issued later to the stream waits for the event."""
        super().wait(current_stream() if stream is None else stream)

    def synchronize(self):
        """Wait on the host for the event."""
        tape.check_not_capturing("aclrtSynchronizeEvent")
        super().synchronize()

    def elapsed_time(self, end_event) -> float:
        """Milliseconds between this event and a later one."""
        for event in (self, end_event):
            if not hasattr(event, "_recorded_at"):
                raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        self.synchronize()
        return (end_event._recorded_at - self._recorded_at) * 1e3


class ExternalEvent:
    """An event that a captured graph waits for and that other work records, once it has renewed the graph's arguments.

    wait and reset during a capture go on the tape. A replay stops at a wait until the event is recorded.
    """

    def __init__(self):
        self.recorded, self._point = False, None

    def record(self, stream=None):
        """Set the event; replays that wait for it go on."""
        self.recorded, self._point = True, Event()
        self._point.record(stream)
        tape.resume(self)

    def order(self):
        """Work issued later to the current stream is ordered after the event, which was recorded."""
        self._point.wait()

    def wait(self, stream=None):
        """The stream waits for the event; inside a capture this is a point on the tape."""
        tape.record_wait(self)

    def reset(self, stream=None):
        """The event must be recorded anew before the next wait passes; inside a capture a point on the tape."""
        if not tape.record_reset(self):
            self.recorded = False


class SyncLaunchStream(Stream):
    """A stream whose operators are launched without the task queue; every stream is one here."""


def current_stream(device=None) -> Stream:
    """The stream to which this thread's work goes."""
    devices.init()
    return _same(torch._C._accelerator_getStream(devices.index_of(device)))


def default_stream(device=None) -> Stream:
    """The device's stream number 0."""
    devices.init()
    return Stream(stream_id=0, device_index=devices.index_of(device), device_type=_device_type())


def set_stream(stream) -> None:
    """Make a stream current."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager: the stream is current inside; None changes nothing. A class, as Dynamo asks for its type."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.previous = current_stream()
        set_stream(self.stream)

    def __exit__(self, *_):
        set_stream(self.previous)


def stream(stream) -> StreamContext:
    """The context manager in which the stream is current."""
    return StreamContext(stream)


def _same(stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def _device_type() -> int:
    return torch._C._accelerator_getStream(npu_device.current_device()).device_type
