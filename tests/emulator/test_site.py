"""The folder that loads the emulator: what is in it, when it is built again, and what it says when it cannot be."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulator import site
from emulator.device import build
from tests.emulator import processes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A prefix of its own, a compiler that leaves a note instead of compiling; returns the prefix."""
    prefix = tmp_path / "prefix"
    prefix.mkdir()
    facts = {"torch": "2.13.0", "prefix": str(prefix), "tag": "cpython-311"}
    monkeypatch.setattr(site, "_ask", lambda python: dict(facts))
    monkeypatch.setattr(build, "build", fake_build)
    fake_build.calls = []
    return prefix


def fake_build(python, out_dir, progress):
    progress("compiling")
    fake_build.calls.append(python)
    module = out_dir / "npu_device.so"
    module.write_bytes(b"compiled")
    return module


def copy_sources(tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    sources.mkdir()
    for path in build.SOURCES.iterdir():
        if path.is_file():
            (sources / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "SOURCES", sources)
    return sources


def test_the_folder_holds_the_device_a_distribution_and_links(scratch):
    folder = site.ensure("python", progress=lambda line: None)
    assert folder.parent == scratch / "emulator"
    assert (folder / "npu_device.so").read_bytes() == b"compiled"
    assert (folder / "torch_npu").resolve() == ROOT / "emulator/torch_npu"
    assert (folder / "npu_transformer_engine").resolve() == ROOT / "emulator/transformer_engine"
    assert not (folder / "transformer_engine").exists()
    assert not (folder / "site.py").exists()
    info = folder / f"torch_npu-{site.torch_npu_version()}.dist-info"
    assert "torch_npu = torch_npu:_autoload" in (info / "entry_points.txt").read_text()


def test_a_second_call_builds_nothing(scratch):
    lines = []
    first = site.ensure("python", progress=lines.append)
    assert site.ensure("python", progress=lines.append) == first
    assert len(fake_build.calls) == 1
    assert lines == ["compiling"]


@pytest.mark.parametrize("change", ["a source", "a header", "a new source", "the flags"])
def test_changed_sources_are_compiled_again(scratch, tmp_path, monkeypatch, change):
    sources = copy_sources(tmp_path, monkeypatch)
    first = site.ensure("python", progress=lambda line: None)
    if change == "the flags":
        # The flags stand in build.py, which is part of the fingerprint.
        changed = tmp_path / "build.py"
        changed.write_text(Path(build.__file__).read_text().replace('"-O2"', '"-O1"'))
        monkeypatch.setattr(build, "__file__", str(changed))
    else:
        name = {"a source": "memory.cpp", "a header": "device.h", "a new source": "extra.cpp"}[change]
        with (sources / name).open("a") as file:
            file.write("// changed\n")
    second = site.ensure("python", progress=lambda line: None)
    assert second != first
    assert first.exists()
    assert len(fake_build.calls) == 2


def test_another_torch_or_version_gets_another_folder(scratch, monkeypatch):
    first = site.ensure("python", progress=lambda line: None)
    monkeypatch.setenv("NPU_EMULATOR_TORCH_NPU", "2.7.1.post9")
    second = site.ensure("python", progress=lambda line: None)
    assert (second / "torch_npu-2.7.1.post9.dist-info").is_dir()
    assert second != first
    assert len(fake_build.calls) == 1  # the compiled module is the same
    asked = {"torch": "2.7.1", "prefix": str(scratch), "tag": "cpython-311"}
    monkeypatch.setattr(site, "_ask", lambda python: asked)
    assert site.ensure("python", progress=lambda line: None) not in (first, second)
    assert len(fake_build.calls) == 2


def test_a_build_that_was_killed_leaves_nothing_that_is_used(scratch, monkeypatch):
    def killed(python, out_dir, progress):
        (out_dir / "npu_device.so").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "build", killed)
    with pytest.raises(KeyboardInterrupt):
        site.ensure("python", progress=lambda line: None)
    monkeypatch.setattr(build, "build", fake_build)
    folder = site.ensure("python", progress=lambda line: None)
    assert (folder / "npu_device.so").read_bytes() == b"compiled"


def test_two_builders_do_not_collide(tmp_path):
    code = f"""
import sys, time
from pathlib import Path
from emulator import site
from emulator.device import build
def slow(python, out_dir, progress):
    with open({str(tmp_path / "builds")!r}, "a") as file:
        file.write("x")
    time.sleep(0.5)
    (out_dir / "npu_device.so").write_bytes(b"compiled")
    return out_dir / "npu_device.so"
build.build = slow
facts = dict(torch="2.13.0", prefix={str(tmp_path)!r}, tag="cpython-311")
site._ask = lambda python: facts
print(site.ensure())
"""
    started = [processes.start(code, PYTHONPATH=ROOT) for _ in range(3)]
    folders = {processes.finish(process).stdout.strip() for process in started}
    assert len(folders) == 1
    assert (tmp_path / "builds").read_text() == "x"


def test_a_read_only_environment_uses_the_cache(scratch, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "cache" in str(path) and real(path, mode))
    assert site.ensure("python", progress=lambda line: None).is_relative_to(tmp_path / "cache")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(site.SiteError, match="Set XDG_CACHE_HOME to a writable folder"):
        site.ensure("other", progress=lambda line: None)


def test_without_a_compiler_the_message_names_the_package(scratch, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "build", REAL_BUILD)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"no g\+\+ on the PATH.\nInstall it: apt-get install g\+\+"):
        site.ensure("python", progress=lambda line: None)


REAL_BUILD = build.build


def test_without_pythons_headers_the_message_names_the_package(tmp_path):
    with pytest.raises(build.BuildError, match=r"apt-get install python3\.11-dev"):
        build._check_headers({"python_include": str(tmp_path)})


def test_a_source_that_does_not_compile_ends_in_one_message_and_a_log(tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "wrong.cpp").write_text("int main() { return nothing_of_that_name; }\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(build.BuildError) as caught:
        build.build(sys.executable, tmp_path / "out", lambda line: None)
    first, second = str(caught.value).splitlines()
    assert "did not compile (wrong.cpp)" in first
    assert "nothing_of_that_name" in first
    log = Path(second.removeprefix("The compiler's output is in ").split(". ")[0])
    assert "nothing_of_that_name" in log.read_text()


def test_a_python_without_torch_is_told_so():
    with pytest.raises(site.SiteError, match=r"has no torch.\nInstall the locked requirements"):
        site.ensure(str(bare_python()))


def bare_python():
    """The interpreter that this environment was made from, without its packages."""
    base = Path(sys.base_prefix) / "bin" / "python3"
    found = subprocess.run([base, "-c", "import importlib.util as u; print(u.find_spec('torch'))"], capture_output=True)
    if sys.prefix == sys.base_prefix or found.stdout.strip() != b"None":
        pytest.skip("there is no Python without torch here")
    return base


def test_the_command_prints_the_path_and_nothing_else():
    done = subprocess.run([sys.executable, "-m", "emulator.site"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.strip() == str(site.ensure())


def test_the_command_ends_in_one_message(tmp_path):
    code = f"import sys; sys.executable = {str(tmp_path / 'none')!r}; from emulator import site; sys.exit(site.main())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "expected a Python interpreter" in done.stderr


def test_it_imports_the_standard_library_only():
    for path in (Path(site.__file__), Path(build.__file__)):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or top == "emulator", f"{path.name} imports {name}"


def test_torch_loads_the_emulator_by_itself_only_with_the_folder_on_the_path():
    code = "import torch; print(hasattr(torch, 'npu'), torch.accelerator.is_available())"
    assert processes.run(code).stdout.strip() == "True True"
    assert processes.run(code, PYTHONPATH=None).stdout.strip() == "False False"


def test_the_device_wants_torch_first():
    done = processes.run("import npu_device", check=False)
    assert "ImportError: npu_device is a device of torch: import torch first" in done.stderr


def test_the_operator_table_of_torch_is_read():
    table = """
- func: add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
  device_check: NoCheck   # TensorIterator
- func: mm(Tensor self, Tensor mat2) -> Tensor
  dispatch:
    CPU: mm
- func: where.self(Tensor condition, Tensor self, Tensor other) -> Tensor
  variants: function
  device_check: NoCheck
"""
    header = build.device_checks(table)
    assert '"aten::add.Tensor",\n    "aten::where.self",' in header
    assert "mm" not in header
