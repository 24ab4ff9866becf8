"""Programs on the device, run on the emulated one."""

import pytest

import matrix as matrices
from checks.doctor import deep
from emulator import site


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(site.ensure()))
    monkeypatch.setenv("NPU_EMULATOR_DEVICES", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("TASK_QUEUE_ENABLE", raising=False)


def test_a_program_that_fails_is_quoted(emulated, monkeypatch):
    """Capture refuses the second level of the task queue (F12): the program says what torch_npu says."""
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "2")
    assert "TASK_QUEUE_ENABLE" in deep.run("graph").said


def test_without_torch_npu_the_rest_is_skipped(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    results = deep.results(matrices.load("cpu"))
    assert [one.status for one in results] == ["fail", *["skip"] * 5]
    assert results[0].faults[0].found == "no module torch_npu"


def test_a_program_that_hangs_is_stopped(emulated):
    assert deep.run("load", seconds=0.05).said == "no end within 0.05 s"


@pytest.mark.slow
def test_the_programs(emulated):
    results = deep.results(matrices.load("performance"))
    assert {one.check.id: (one.status, one.faults) for one in results} == {
        f"device.{name}": ("pass", ()) for name in ("load", "matmul", "grouped-matmul", "all-reduce", "graph", "sleep")
    }


@pytest.mark.slow
def test_a_wrong_result_is_found(emulated, tmp_path, monkeypatch):
    """A matrix product that is a little off, as a broken kernel would give it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import torch\n"
        "right = torch.Tensor.__matmul__\n"
        "torch.Tensor.__matmul__ = lambda x, y: right(x, y) * (1.1 if x.device.type == 'npu' else 1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{site.ensure()}")
    assert "the product of two matrices: expected the CPU's result within" in deep.run("matmul").said
