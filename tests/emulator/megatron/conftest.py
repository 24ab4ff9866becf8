"""Runs the programs of this folder once a session; tests look at what they wrote.

In processes of their own, because importing Megatron makes torch.cuda mean the NPU for the whole process.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.emulator.processes import environment, free_port

HERE = Path(__file__).parent
TIMEOUT = 900  # a minute on an idle machine of two cores, many times that on a crowded one
RANKS = 4

# Every parallel size alone, and the combinations that fit four ranks. Unnamed sizes are 1, the rest is data parallel.
LAYOUTS = [
    *("dp4", "tp2", "tp2-summed", "tp2-etp2", "pp2", "cp2", "cp4", "ep2", "ep4"),
    *("tp2-ep2", "tp2-pp2-etp2", "tp2-cp2-etp2", "tp2-cp2-ep2", "tp2-pp2-ep2"),
    *("pp2-ep2", "pp2-cp2", "pp2-cp2-ep2", "cp2-ep2"),
    *("cp2-recompute", "tp2-ep2-recompute"),
    *("dp4-bf16", "cp2-bf16", "tp2-ep2-bf16"),
]


def launch(program: str, *arguments, ranks=1, **variables):
    """Runs a program of this folder in `ranks` processes; fails with the end of its output."""
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    done = subprocess.run(
        [*command, str(HERE / program), *map(str, arguments)],
        env=environment(HF_HUB_OFFLINE=1, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, f"{program} ended with {done.returncode}:\n{done.stdout[-6000:]}"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The tiny model, its Megatron checkpoint and what plain HF computes."""
    path = tmp_path_factory.mktemp("megatron")
    launch("reference.py", path)
    return path


@pytest.fixture(scope="session")
def hf(folder):
    """log_probs and gradients of plain HF in float32."""
    return torch.load(folder / "hf.pt")


@pytest.fixture(scope="session")
def traces(folder):
    """One trace a rank of the run of all layouts; with it FOLDER/LAYOUT.pt is written.

    New and freed memory holds NaN, so that whatever is read before it is written shows.
    """
    launch(
        "layouts.py", folder, *LAYOUTS, ranks=RANKS, NPU_EMULATOR_TRACE=folder / "trace", NPU_EMULATOR_POISON="freed"
    )
    found = [json.loads(path.read_text()) for path in (folder / "trace").glob("rank*.json")]
    return [trace for trace in found if trace["operators"]]  # not the processes that write checkpoints


@pytest.fixture(scope="session")
def layouts(folder, traces):
    """Layout -> what layouts.py wrote of it."""
    return {name: torch.load(folder / f"{name}.pt") for name in LAYOUTS}


@pytest.fixture(scope="session")
def resumed(folder):
    """What each rank of resume.py found."""
    launch("resume.py", folder, ranks=RANKS)
    return torch.load(folder / "resume.pt")
