"""What this process did on the device: the proof that a switch does something. A real torch_npu has no such module.

With NPU_EMULATOR_TRACE=FOLDER every process that used the device writes FOLDER/rank<RANK>-<pid>.json, once a second
while something changes and at exit, each time by an atomic replace. The document's keys:

- rank, pid, command: whose trace it is (rank is the environment's RANK, "none" outside a process group)
- operators: name -> {forward, backward: calls; shapes, dtypes: those of the first call's tensor arguments}
- graphs: {captured, replayed, recorded}: graphs captured, replays, operators on the tapes
- nz_partial_writes: writes into a part of a FRACTAL_NZ storage, whose result on a device is undefined
- races: uses of memory on two streams that nothing orders, one row a kind and pair of operators: kind, first and
  second {operator, stream [device, number], device -1 for the host, access}, shape, dtype, bytes of the storage, count
- memory: {unmaps, maps, unmapped_bytes}: sleep mode's work on the memory pool
- vllm: vLLM's compilation_counter, without zeros; None when vLLM is not imported
- patches: MindSpeed's applied patches, target -> replacements; None when MindSpeed is not imported
- torch_compile: module of the current torch.compile (shows a replaced one)
"""

import atexit
import collections
import json
import os
import sys
import threading

from . import settings, stacks

PHASES = ("forward", "backward")
INTERVAL = 1.0

_calls = collections.Counter()  # (operator, phase) -> calls
_first = {}  # operator -> (shapes, dtypes)
_counters = collections.Counter()
_writer = None


def record(name, phase="forward", shapes=(), dtypes=()):
    """Count one call of an operator; shapes and dtypes of the first call are kept."""
    _calls[name, phase] += 1
    if name not in _first:
        _first[name] = ([list(s) for s in shapes], [str(d).removeprefix("torch.") for d in dtypes])


def count(name, by=1):
    """Add to one of the counters outside the operators: graphs.*, memory.*, nz_partial_writes."""
    _counters[name] += by


def counter(name) -> int:
    """A counter's value."""
    return _counters[name]


def calls(name, phase="forward") -> int:
    """Calls of an operator so far."""
    return _calls[name, phase]


def reset() -> None:
    """Forget everything counted so far."""
    _calls.clear()
    _first.clear()
    _counters.clear()


def document() -> dict:
    """The trace of this process as it stands (see the module's docstring)."""
    return {
        "rank": _rank(),
        "pid": os.getpid(),
        "command": sys.argv[:1],
        "operators": _operators(),
        "graphs": _group("graphs", ("captured", "replayed", "recorded")),
        "nz_partial_writes": _counters["nz_partial_writes"],
        "races": _races(),
        "memory": _group("memory", ("unmaps", "maps", "unmapped_bytes")),
        "vllm": _vllm_counters(),
        "patches": _mindspeed_patches(),
        "torch_compile": _torch_compile(),
    }


def start() -> None:
    """Begin to write the trace if the environment asks for it. Called once, when torch_npu is imported."""
    global _writer
    folder = settings.trace_folder()
    if folder is None or _writer is not None:
        return
    _writer = _Writer(folder)
    _writer.run()
    stacks.listen(folder)
    atexit.register(_writer.write)
    os.register_at_fork(after_in_child=_restart)


def _restart():
    """A forked child has its own trace: nothing counted, no thread, another file name."""
    global _writer
    reset()
    _writer = _Writer(_writer.folder)
    _writer.run()
    stacks.listen(_writer.folder)
    atexit.register(_writer.write)


class _Writer:
    """Writes the document when it changed. One file a process; it is renamed when the process learns its rank."""

    def __init__(self, folder):
        self.folder, self.path, self.last, self.lock = folder, None, None, threading.Lock()

    def run(self):
        threading.Thread(target=self._loop, name="npu-emulator-trace", daemon=True).start()

    def _loop(self):
        wake = threading.Event()
        while not wake.wait(INTERVAL):
            self.write()

    def write(self):
        """Write if something is new. Never raises: a full disk must not end a training run."""
        try:
            with self.lock:
                self._write()
        except Exception as error:
            print(f"NPU emulator: the trace could not be written to {self.folder}: {error}", file=sys.stderr)

    def _write(self):
        if not _calls and not _counters and not _device_used():
            return
        text = json.dumps(document(), indent=1, sort_keys=True)
        path = os.path.join(self.folder, f"rank{_rank()}-{os.getpid()}.json")
        if (path, text) == (self.path, self.last):
            return
        os.makedirs(self.folder, exist_ok=True)
        part = f"{path}.part"
        with open(part, "w") as file:
            file.write(text)
        os.replace(part, path)
        if self.path not in (None, path):
            os.unlink(self.path)
        self.path, self.last = path, text


def _rank() -> str:
    return os.environ.get("RANK", "none")


def _device_used() -> bool:
    import npu_device

    return npu_device.counts()[0] > 0


def _races():
    import npu_device

    return npu_device.races()


def _group(prefix, names):
    return {name: _counters[f"{prefix}.{name}"] for name in names}


def _operators():
    table = {}
    for (name, phase), number in list(_calls.items()):
        row = table.setdefault(name, {**dict.fromkeys(PHASES, 0), "shapes": _first[name][0], "dtypes": _first[name][1]})
        row[phase] = number
    return table


def _vllm_counters():
    module = sys.modules.get("vllm.compilation.counter")
    counter = getattr(module, "compilation_counter", None)
    return None if counter is None else {name: value for name, value in vars(counter).items() if value}


def _mindspeed_patches():
    """The applied patches of mindspeed.patch_utils.MindSpeedPatchesManager, with what they put in place."""
    module = sys.modules.get("mindspeed.patch_utils")
    manager = getattr(module, "MindSpeedPatchesManager", None)
    if manager is None:
        return None
    table = {}
    for target, patch in list(manager.patches_info.items()):
        functions = [f for f in (patch.patch_func, *patch.wrappers) if f]
        if patch.is_applied and functions:
            table[target] = [f"{getattr(f, '__module__', '?')}.{getattr(f, '__qualname__', f)}" for f in functions]
    return table


def _torch_compile():
    torch = sys.modules.get("torch")
    return getattr(getattr(torch, "compile", None), "__module__", None)
