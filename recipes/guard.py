"""Keeps one program and everything it starts together, and stops all of it, and nothing else.

Runs as a process of its own between the launcher and the trainer (`python -S -m recipes.guard`, standard library only),
so that the trainer is stopped also when the launcher is killed. It is the subreaper of all that the trainer starts:
whatever loses its parent becomes its child, so the whole tree is found by parent ids alone, without names.

It reads its order from standard input: the length in eight digits, then JSON, {command, env, cwd, log, scratch, keep}.
Then it watches that pipe: the letter `s` asks to stop, `k` to stop at once, and its end means that the launcher is
gone. It answers on standard output with one line of JSON an event: {"started": PID}, {"failed": WHY},
{"ended": STATUS}, {"left": [PID, …]}.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

POLITE_SECONDS = 6.0  # for the trainer to end its Ray session after SIGTERM
SETTLE_SECONDS = 4.0  # for its helpers to go by themselves after it has ended
HURRY_SECONDS = 1.0  # the same, after an order to stop
KILL_SECONDS = 8.0  # for killed processes to be gone; together below the promised 20

# Helpers that free shared memory once the processes they serve are gone. They are stopped last.
JANITORS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
JANITOR_SECONDS = 1.0


def main() -> int:
    """Runs the program; the exit status is the program's (128 + signal where a signal ended it)."""
    order = json.loads(_read(int(_read(8))))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the launcher decides, through the pipe
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = _wake_on_child()
    try:
        program = _start(order)
    except OSError as error:
        _say({"failed": f"{error.filename or order['command'][0]}: {error.strerror}"})
        _clear(order, status=0)
        return 127
    _say({"started": program})
    status, asked = _watch(program, wake)
    _say({"ended": status})
    stop_descendants(HURRY_SECONDS if asked else SETTLE_SECONDS)
    _clear(order, status)
    left = descendants(os.getpid())
    if left:
        _say({"left": sorted(left)})
    return status


def descendants(root: int) -> dict[int, tuple[int, bool]]:
    """All processes below `root` by id: start time in clock ticks, and whether the process is dead but not reaped."""
    children: dict[int, list[int]] = {}
    facts: dict[int, tuple[int, bool]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(int(name))):
            parent, state, start = stat
            children.setdefault(parent, []).append(int(name))
            facts[int(name)] = start, state in "ZX"
    found, queue = {}, [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            found[child] = facts[child]
            queue.append(child)
    return found


def stop_descendants(settle: float) -> None:
    """Kills what is left below this process; helpers that clean up come last."""
    settled = time.monotonic() + settle
    while _alive() and time.monotonic() < settled and not _asked_to_hurry():
        _reap()
        time.sleep(0.05)
    deadline, janitors = time.monotonic() + KILL_SECONDS, None
    # A dead process counts until it is reaped: threads of it may still be letting go of memory and files.
    while descendants(os.getpid()) and time.monotonic() < deadline:
        alive = _alive()
        workers = {pid: start for pid, start in alive.items() if not _is_janitor(pid)}
        if not workers and janitors is None:
            janitors = time.monotonic() + JANITOR_SECONDS
        if not workers and time.monotonic() > janitors:
            workers = alive
        for pid, start in workers.items():
            _kill(pid, start)
        _reap()
        time.sleep(0.02)
    _reap()


def _read(size: int) -> bytes:
    """Exactly `size` bytes of standard input, and none of what follows them."""
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            raise EOFError("the launcher ended before it had given its order")
        data += more
    return data


def _start(order: dict) -> int:
    def prepare() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should even the guard be killed

    with open(order["log"], "ab", buffering=0) as log:
        program = subprocess.Popen(
            order["command"],
            cwd=order["cwd"],
            env=order["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=prepare,
        )
    program.returncode = 0  # waited for below, with everything else
    return program.pid


def _watch(program: int, wake: int) -> tuple[int, bool]:
    """Waits for the program's end or an order to stop it; its exit status, and whether it was asked to stop."""
    stop_at, asked = None, False
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    poller.register(wake, select.POLLIN)
    while (status := _reap(program)) is None:
        wait = None if stop_at is None else max(0, int(1000 * (stop_at - time.monotonic())) + 1)
        for descriptor, _ in poller.poll(wait):
            if descriptor == wake:
                os.read(wake, 4096)
                continue
            letter = os.read(0, 1)
            if not letter:
                poller.unregister(0)
            if letter != b"k" and not asked:
                asked, stop_at = True, time.monotonic() + POLITE_SECONDS
                _kill(program, None, signal.SIGTERM)
            else:
                stop_at = time.monotonic()
        if stop_at is not None and time.monotonic() >= stop_at:
            _kill(program, None)
            stop_at = time.monotonic() + 1
    return status, asked


def _reap(program: int | None = None) -> int | None:
    """Collects dead children; the exit status of `program` if it is among them."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == program:
            code = os.waitstatus_to_exitcode(raw)
            status = 128 - code if code < 0 else code


def _alive() -> dict[int, int]:
    return {pid: start for pid, (start, dead) in descendants(os.getpid()).items() if not dead}


def _stat(pid: int) -> tuple[int, str, int] | None:
    """Parent id, state letter and start time of a process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return int(fields[1]), fields[0].decode(), int(fields[19])


def _kill(pid: int, start: int | None, number: int = signal.SIGKILL) -> None:
    """Signals a process, held by a descriptor so that a new process with the same id is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = _stat(pid)
        if stat and (start is None or stat[2] == start):
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass
    finally:
        os.close(handle)


def _is_janitor(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False
    return any(name in line for name in JANITORS)


def _asked_to_hurry() -> bool:
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and os.read(0, 1) == b"k"


def _clear(order: dict, status: int) -> None:
    """Removes the scratch folder; after a failure the small logs in it are kept in the run directory."""
    scratch, keep = order.get("scratch"), order.get("keep")
    if not scratch:
        return
    if status and keep:
        _keep_logs(scratch, keep)
    shutil.rmtree(scratch, ignore_errors=True)


def _keep_logs(scratch: str, keep: str, limit: int = 4 << 20) -> None:
    for folder, _, names in os.walk(os.path.join(scratch, "ray")):
        if os.path.basename(folder) != "logs" or os.path.islink(os.path.dirname(folder)):
            continue
        for name in names:
            source = os.path.join(folder, name)
            try:
                if os.path.isfile(source) and 0 < os.path.getsize(source) <= limit:
                    os.makedirs(keep, exist_ok=True)
                    shutil.copyfile(source, os.path.join(keep, name))
            except OSError:
                return  # the logs are a help, and a full disk may be why the run failed


def _wake_on_child() -> int:
    """A descriptor that becomes readable when a child dies."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _say(event: dict) -> None:
    with contextlib.suppress(OSError):  # the launcher may be gone; the work goes on
        os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
