"""Logs of real faults: made here by the real stack on the emulated NPU, and kept from real runs.

The kept ones come from `real_faults.py` and, gzipped, from trainings and rehearsals on the emulator; paths and names of
machines are replaced. A log is named after the problem that it must be told to be: `ID-mistake.log`, `none-…` for no
known one.
"""

from pathlib import Path

import pytest

from checks.triage.diagnosis import diagnose
from checks.triage.reading import Log
from checks.triage.scan import scan
from emulator import site
from tests.emulator.processes import run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = sorted((HERE / "logs").iterdir())
MADE = [log.stem for log in KEPT if log.suffix == ".log"]
VARIABLES = {
    "VLLM_NO_USAGE_STATS": 1,
    "HF_HUB_OFFLINE": 1,
    "TASK_QUEUE_ENABLE": 1,
    "NPU_EMULATOR_MEMORY_GIB": 2,
}


def first(log: Path) -> str:
    """The problem that triage names, or `none`."""
    diagnosis = diagnose([scan(Log(str(log)))])
    return diagnosis.findings[0].problem.id if diagnosis.known else "none"


@pytest.mark.parametrize("log", KEPT, ids=lambda log: log.name)
def test_a_kept_log(log):
    assert first(log) == log.name.split("-")[0]


def test_twelve_problems_at_least_are_real():
    assert len({log.name.split("-")[0] for log in KEPT} - {"none"}) >= 12
    assert sum(log.stat().st_size for log in KEPT) < 300_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the logs of faults that happen now."""
    folder = tmp_path_factory.mktemp("faults")
    run(HERE / "real_faults.py", folder, timeout=400, **VARIABLES, PYTHONPATH=f"{site.ensure()}:{ROOT}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_fault_of_the_real_stack(made, name):
    log = made / f"{name}.log"
    assert first(log) == name.split("-")[0], log.read_text()


@pytest.mark.slow
def test_the_kept_logs_are_those_of_the_faults(made):
    assert sorted(log.stem for log in made.glob("*.log")) == sorted(MADE)
