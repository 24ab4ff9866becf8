"""Drifts: how sources are hooked, that a stale edit is noticed, and what the pinned packages look like afterwards."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch_npu  # noqa: F401
from torch_npu import drift, import_hooks

from tests.emulator.processes import run


@pytest.fixture
def module_file(tmp_path, monkeypatch):
    """Makes a module of some source text; what is hooked for it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name, text):
        made.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)
        for table in (import_hooks._edits, import_hooks._before, import_hooks._after, import_hooks._sources):
            table.pop(name, None)


def test_an_edit_changes_the_text_and_nothing_on_disk(module_file, tmp_path):
    name = module_file("drift_edited", "VALUE = 1\nNAME = __name__\n")
    import_hooks.edit(name, "VALUE = 1", "VALUE = 2", "a test")
    module = importlib.import_module(name)
    assert module.VALUE == 2
    assert name == module.NAME
    assert module.__file__ == str(tmp_path / f"{name}.py")
    assert "VALUE = 1" in (tmp_path / f"{name}.py").read_text()


@pytest.mark.parametrize("text, times", [("VALUE = 3", 0), ("VALUE = 1\nVALUE = 1", 2)])
def test_an_edit_whose_text_is_gone_or_doubled_says_so(module_file, text, times):
    name = module_file("drift_stale", text)
    import_hooks.edit(name, "VALUE = 1", "VALUE = 2", "newer torch")
    with pytest.raises(ImportError) as error:
        importlib.import_module(name)
    message = str(error.value)
    assert "edits drift_stale (newer torch)" in message
    assert f"found it {times} times" in message
    assert "drift.py" in message


def test_functions_run_before_and_after_a_module(module_file):
    name = module_file("drift_hooked", "SEEN = list(BEFORE)\n")
    import_hooks.before(name)(lambda module: setattr(module, "BEFORE", [1]))
    import_hooks.after(name)(lambda module: module.SEEN.append(2))
    module = importlib.import_module(name)
    assert module.SEEN == [1, 2]
    import_hooks.after(name)(lambda module: module.SEEN.append(3))
    assert module.SEEN == [1, 2, 3], "a module that is there is hooked at once"


def test_a_module_from_another_place_or_from_nowhere(module_file, tmp_path):
    other = tmp_path / "elsewhere.txt.py"
    other.write_text("VALUE = 5\n")
    import_hooks.replace(module_file("drift_replaced", "VALUE = 1\n"), str(other))
    assert importlib.import_module("drift_replaced").VALUE == 5
    import_hooks.replace("drift_filled", lambda module: setattr(module, "VALUE", 6))
    try:
        assert importlib.import_module("drift_filled").VALUE == 6
    finally:
        import_hooks._sources.pop("drift_filled")


def test_the_installed_packages_are_those_the_edits_were_written_for():
    """Every edit's text is in the installed source, once."""
    for name, edits in import_hooks._edits.items():
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        parent = importlib.util.find_spec(name.partition(".")[0]).submodule_search_locations[0]
        text = Path(parent, *name.split(".")[1:]).with_suffix(".py").read_text()
        assert [text.count(old) for old, _, _ in edits] == [1] * len(edits), name


def test_split_sizes_may_be_tensors_or_numpy_integers():
    assert drift._integers([torch.tensor(2), 3]) == [2, 3]
    assert drift._integers(torch.tensor([1, 2])) == [1, 2]
    assert drift._integers(None) is None


MEGATRON = """
import torch
compiled = torch.compile
import megatron.core, megatron.core.jit, megatron.core.extensions.transformer_engine as extension
assert torch.compile is compiled and compiled.__module__ == "torch", "vLLM's graph mode needs the real one"
f = lambda x: x
assert megatron.core.jit.jit_fuser(f) is f
print(torch.cuda.current_device(), torch.zeros(1, device="cuda").device, extension.TENorm.__module__.split(".")[0])
"""


def test_megatron_without_mindspeed():
    pytest.importorskip("megatron.core")
    assert run(MEGATRON).stdout.splitlines()[-1] == "0 npu:0 npu_transformer_engine"


ENTROPY = """
import os, sys, torch, torch.distributed as dist
import megatron.core.parallel_state as parallel
dist.init_process_group("hccl"); parallel.initialize_model_parallel()
from verl.utils.megatron.tensor_parallel import vocab_parallel_entropy
x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
found = vocab_parallel_entropy(x.npu().clone()).cpu()
p = x.softmax(-1)
assert torch.allclose(found, -(p * p.log()).sum(-1), atol=1e-5), found
print("torch._inductor.compile_fx" in sys.modules)
"""


def test_verls_entropy_runs_without_a_compiler():
    pytest.importorskip("megatron.core")
    group = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    assert run(ENTROPY, **group).stdout.splitlines()[-1] == "False"


MINDSPEED = """
import torch
from mindspeed.op_builder.builder import MindSpeedOpBuilder
builder = MindSpeedOpBuilder(); builder.name = "grouped_matmul"
print(sorted(vars(builder.load())))
builder.name = "fused_unknown"
try: builder.load()
except NotImplementedError as error: print(error)
from mindspeed.op_builder.atb_builder import AtbOpBuilder
builder = AtbOpBuilder(); builder.name = "npu_matmul_add_fp32"
print(*vars(builder.load()))
import megatron.core.jit
print(megatron.core.jit.jit_fuser.__module__)
"""


def test_extensions_of_mindspeed_are_operators(tmp_path):
    """A package of that name stands for MindSpeed: where it is importable, Megatron is left to it."""
    pytest.importorskip("megatron.core")
    folder = tmp_path / "mindspeed" / "op_builder"
    folder.mkdir(parents=True)
    (folder / "builder.py").write_text("class MindSpeedOpBuilder:\n    def load(self, verbose=True):\n        1 / 0\n")
    (folder / "atb_builder.py").write_text(
        "from mindspeed.op_builder.builder import MindSpeedOpBuilder\n"
        "class AtbOpBuilder(MindSpeedOpBuilder):\n    def load(self, verbose=True):\n        1 / 0\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{MINDSPEED}"
    lines = run(code).stdout.splitlines()
    assert lines[0] == "['npu_gmm', 'npu_gmm_backward', 'npu_gmm_backward_fusion']"
    assert "no operators for MindSpeed's C++ extension 'fused_unknown'" in lines[1]
    assert lines[2:] == ["npu_matmul_add_fp32", "torch"]
