"""`--deep`: small programs on the device, in processes of their own with a time limit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from checks.doctor.check import ALL, Check, Fault
from checks.doctor.verdict import Result, judge
from checks.words import Text, Words
from matrix import Matrix

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0  # for one program; importing torch and torch_npu takes most of it
LOAD = "device.load"


@dataclass(frozen=True)
class Device:
    """What these checks look at: the devices themselves."""

    matrix: Matrix


def results(matrix: Matrix) -> list[Result]:
    """Runs the programs one after the other; those after `load` only where that works."""
    return judge(Device(matrix), CHECKS)


def run(name: str, seconds: float = SECONDS, ranks: int = 1) -> str | None:
    """Runs a program, on several devices with one process each; None, or the last line of why it failed."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "checks.doctor.probes", name]
    processes = []
    for rank in range(ranks):
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
        environment = {**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": path}
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    try:
        return next(filter(None, [_end(process, seconds) for process in processes]), None)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _end(process: subprocess.Popen, seconds: float) -> str | None:
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end within {seconds:g} s"
    if process.returncode == 0:
        return None
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return last[:300] or f"ended with {process.returncode}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def devices() -> int:
    """How many devices torch_npu shows."""
    command = [sys.executable, "-m", "checks.doctor.probes", "count"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else 1


def _program(name: str, remedy: Words, ranks: Callable[[], int] = lambda: 1):
    def body(_: Device) -> Iterator[Fault]:
        said = run(name, ranks=ranks())
        if said:
            yield Fault(Text("it runs", "可运行"), said, remedy)

    return body


CHECKS = (
    Check(
        LOAD,
        Text("torch_npu loads and shows devices", "torch_npu 可加载且能看到设备"),
        _program("load", "npu-smi info; source …/set_env.sh; python -c 'import torch_npu'"),
        "fail", (), ALL, "B4",
    ),
    Check(
        "device.matmul", Text("a matrix product is right", "矩阵乘结果正确"),
        _program("matmul", "npu-smi info -t health -i 0"),
        "fail", (LOAD,), ALL,
    ),
    Check(
        "device.grouped-matmul", Text("a grouped product with group_type is right", "带 group_type 的分组矩阵乘正确"),
        _program("grouped_matmul", Text("install the matrix's torch-npu and CANN", "安装矩阵所列 torch-npu 与 CANN")),
        "fail", (LOAD,), ALL, "S4",
    ),
    Check(
        "device.all-reduce", Text("the devices add up over HCCL", "HCCL all-reduce 正确"),
        _program("all_reduce", "for i in {0..7}; do hccn_tool -i $i -link -g; done", devices),
        "fail", (LOAD,), ALL, "C6",
    ),
    Check(
        "device.graph", Text("a graph is captured and replayed", "图捕获与重放正确"),
        _program("graph", "export TASK_QUEUE_ENABLE=1; unset ASCEND_LAUNCH_BLOCKING"),
        "fail", (LOAD,), ALL, "G1",
    ),
    Check(
        "device.sleep", Text("memory sleeps and wakes up with its contents", "显存 sleep 与 wake-up 后内容不变"),
        _program("sleep", "COMPILE_CUSTOM_KERNELS=1 pip install --no-deps --no-build-isolation …/vllm-ascend"),
        "fail", (LOAD,), ALL, "B11",
    ),
)  # fmt: skip
