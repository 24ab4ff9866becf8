"""The cpu image's environment is invokew's, less what nothing reads when something runs."""

import environment
from image.steps import cpu
from image.steps.step import run


def test_only_what_is_listed_goes(tmp_path, monkeypatch, capsys):
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    kept = [packages / "torch" / "bin" / "torch_shm_manager", packages / "numpy" / "core.py"]
    gone = [packages / "torch" / "bin" / "FileStoreTest", packages / "numpy" / "core" / "tests" / "test_x.py"]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 1000)
    monkeypatch.setattr(cpu, "PROJECT", tmp_path)
    monkeypatch.setattr(environment, "set_up", lambda root, machine: None)
    assert run("cpu", cpu.make, []) == 0
    assert all(path.is_file() for path in kept) and not any(path.exists() for path in gone)
    assert "removed 0 MB" in capsys.readouterr().out


def test_a_failed_set_up_ends_in_one_line_with_what_was_found(monkeypatch, capsys):
    def fail(root, machine):
        raise environment.SetupError("torch: the disk is full; free 4 GB\n    found: No space left on device")

    monkeypatch.setattr(environment, "set_up", fail)
    assert run("cpu", cpu.make, []) == 1
    said = capsys.readouterr().err
    assert said == (
        "image: cpu: expected the cpu matrix's environment, found No space left on device; "
        "torch: the disk is full; free 4 GB\n"
    )
