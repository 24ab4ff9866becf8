"""Compile the device (`npu_device.so`) against the torch of a Python interpreter.

Standard library only; torch is asked in a subprocess, so that this module can run before torch is imported.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++20", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO")
WARNINGS = ("-Wall", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-Wno-attributes")
PARALLEL = 2  # a compiler takes up to 1 GB
MODULE = "npu_device"

# Asked of the interpreter that will import the module. Its torch must not load a device while it answers.
_QUESTION = """
import json, os, sysconfig
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch, torchgen
flags = {name: getattr(torch._C, "_PYBIND11_" + name, None) for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI")}
print(json.dumps({
    "torch": os.path.dirname(torch.__file__),
    "torchgen": os.path.dirname(torchgen.__file__),
    "python_include": sysconfig.get_paths()["include"],
    "cxx11_abi": int(torch._C._GLIBCXX_USE_CXX11_ABI),
    "pybind11": flags,
}))
"""


class BuildError(RuntimeError):
    """The device could not be compiled; the message says what is missing or where the compiler's output is."""


def sources() -> list[Path]:
    """The C++ files, in a fixed order."""
    return sorted(SOURCES.glob("*.cpp"))


def fingerprint() -> str:
    """A hash of everything that decides what the compiled module does: sources, headers, flags, this file."""
    digest = hashlib.sha256()
    for path in [*sources(), *sorted(SOURCES.glob("*.h")), Path(__file__)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def build(python: str, out_dir: Path, progress: Callable[[str], None]) -> Path:
    """Compile into `out_dir` for the torch of `python`; return the module's path.

    `progress` gets one line before the compiler starts. Raises BuildError.
    """
    compiler = _compiler()
    facts = _ask(python)
    _check_headers(facts)
    work = out_dir / "build"
    work.mkdir(parents=True, exist_ok=True)
    (work / "device_checks.h").write_text(device_checks(_operator_table(facts)))
    flags = _flags(facts, work)
    progress("compiling the emulated NPU (about 40 s, once)…")
    log = out_dir / "build.log"
    log.write_text("")
    with ThreadPoolExecutor(PARALLEL) as pool:
        jobs = [pool.submit(_run, _compile_command(compiler, flags, path, work), log) for path in sources()]
        failed = [path.name for path, job in zip(sources(), jobs, strict=True) if not job.result()]
    module = out_dir / f"{MODULE}.so"
    if not failed and not _run(_link_command(compiler, facts, work, module), log):
        failed = [f"linking {MODULE}.so"]
    if failed:
        raise BuildError(_failure(failed, log))
    shutil.rmtree(work)
    return module


def device_checks(operator_table: str) -> str:
    """A C++ header that lists the operators which take CPU tensors without dimensions beside tensors of a device.

    `operator_table` is the text of torch's native_functions.yaml; these operators carry "device_check: NoCheck" there.
    """
    names, current = [], ""
    for line in operator_table.splitlines():
        if match := re.match(r"- func: ([\w.]+)\(", line):
            current = match[1]
        elif current and re.match(r"\s+device_check: NoCheck\b", line):
            names.append(f"aten::{current}")
            current = ""
    rows = "\n".join(f'    "{name}",' for name in sorted(set(names)))
    return (
        "// Written by build.py from torch's native_functions.yaml.\n#pragma once\n#include <string_view>\n\n"
        f"namespace npu {{\nconstexpr std::string_view kTakesHostScalars[] = {{\n{rows}\n}};\n}}\n"
    )


def _compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        raise BuildError(
            "the emulated NPU is compiled at set-up and needs a C++ compiler; found no g++ on the PATH.\n"
            "Install it: apt-get install g++"
        )
    return compiler


def _ask(python: str) -> dict:
    answer = subprocess.run([python, "-c", _QUESTION], capture_output=True, text=True, timeout=300)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        raise BuildError(f"expected torch to import under {python}, found: {last}\nInstall the locked requirements.")
    return json.loads(answer.stdout.strip().splitlines()[-1])


def _check_headers(facts: dict) -> None:
    header = Path(facts["python_include"]) / "Python.h"
    if not header.exists():
        raise BuildError(
            f"the emulated NPU is compiled at set-up and needs Python's headers; found no {header}.\n"
            "Install them: apt-get install python3.11-dev (for the system's Python 3.11)"
        )


def _operator_table(facts: dict) -> str:
    return (Path(facts["torchgen"]) / "packaged/ATen/native/native_functions.yaml").read_text()


def _flags(facts: dict, work: Path) -> list[str]:
    torch = facts["torch"]
    includes = [str(work), f"{torch}/include", f"{torch}/include/torch/csrc/api/include", facts["python_include"]]
    flags = [*FLAGS, *WARNINGS, f"-I{includes[0]}"]
    flags += [f"-isystem{path}" for path in includes[1:]]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={facts['cxx11_abi']}", f"-DTORCH_EXTENSION_NAME={MODULE}"]
    flags += [f'-DPYBIND11_{name}="{value}"' for name, value in facts["pybind11"].items() if value]
    return flags


def _compile_command(compiler: str, flags: list[str], source: Path, work: Path) -> list[str]:
    return [compiler, *flags, "-c", str(source), "-o", str(work / f"{source.stem}.o")]


def _link_command(compiler: str, facts: dict, work: Path, module: Path) -> list[str]:
    objects = [str(work / f"{path.stem}.o") for path in sources()]
    libraries = ["-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
    lib = f"{facts['torch']}/lib"
    return [compiler, "-shared", *objects, f"-L{lib}", *libraries, f"-Wl,-rpath,{lib}", "-s", "-o", str(module)]


def _run(command: list[str], log: Path) -> bool:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}")
    return done.returncode == 0


def _failure(failed: list[str], log: Path) -> str:
    errors = [line for line in log.read_text().splitlines() if "error" in line.lower()]
    first = errors[0] if errors else "no error line (out of memory? a compiler takes up to 1 GB)"
    return (
        f"the emulated NPU did not compile ({', '.join(failed)}): {first}\n"
        f"The compiler's output is in {log}. The device is known to compile with torch 2.7.1 and 2.13.0 and g++ 12."
    )
