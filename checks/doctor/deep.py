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

PROBES = Path(__file__).with_name("probes.py")
SECONDS = 120.0  # for one program; importing torch and torch_npu takes most of it
LOAD = "device.load"


@dataclass
class Device:
    """What these checks look at: the devices themselves."""

    matrix: Matrix
    count: int = 1  # known once `load` has run


def results(matrix: Matrix) -> list[Result]:
    """Runs the programs one after the other; those after `load` only where that works."""
    return judge(Device(matrix), CHECKS)


@dataclass(frozen=True)
class Ended:
    """A program's end: nothing said where it went well, and what it printed."""

    said: str
    printed: str = ""


def run(name: str, seconds: float = SECONDS, ranks: int = 1) -> Ended:
    """Runs a program, on several devices with one process each. Of several that fail, the first is quoted."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    processes = []
    for rank in range(ranks):
        environment = {**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, "-P", str(PROBES), name]  # -P: beside it lie modules named as packages are
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    try:
        ended = [_end(process, seconds) for process in processes]
        return next((one for one in ended if one.said), ended[0])
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _end(process: subprocess.Popen, seconds: float) -> Ended:
    try:
        printed, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Ended(f"no end within {seconds:g} s")
    if process.returncode == 0:
        return Ended("", printed)
    last = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    return Ended(last[:300] or f"ended with {process.returncode}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


RUNS = Text("it runs", "可运行")


def _load(device: Device) -> Iterator[Fault]:
    ended = run("load")
    if ended.said:
        yield Fault(RUNS, ended.said, "npu-smi info; source …/set_env.sh; python -c 'import torch_npu'")
    else:
        device.count = int(ended.printed.split()[-1])


def _program(name: str, remedy: Words, on_all: bool = False) -> Callable[[Device], Iterator[Fault]]:
    def body(device: Device) -> Iterator[Fault]:
        said = run(name, ranks=device.count if on_all else 1).said
        if said:
            yield Fault(RUNS, said, remedy)

    return body


CHECKS = (
    Check(
        LOAD,
        Text("torch_npu loads and shows devices", "torch_npu 可加载且能看到设备"),
        _load,
        "fail", (), ALL, "B5",
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
        _program("all_reduce", "for i in {0..7}; do hccn_tool -i $i -link -g; done", on_all=True),
        "fail", (LOAD,), ALL, "C6",
    ),
    Check(
        "device.graph", Text("a graph is captured and replayed", "图捕获与重放正确"),
        _program("graph", "export TASK_QUEUE_ENABLE=1; unset ASCEND_LAUNCH_BLOCKING"),
        "fail", (LOAD,), ALL, "F12",
    ),
    Check(
        "device.sleep", Text("memory sleeps and wakes up with its contents", "显存 sleep 与 wake-up 后内容不变"),
        _program("sleep", "COMPILE_CUSTOM_KERNELS=1 pip install --no-deps --no-build-isolation …/vllm-ascend"),
        "fail", (LOAD,), ALL, "B6",
    ),
)  # fmt: skip
