"""torch_npu as its importers see it:

every path and name the pinned packages import, how it loads, where it refuses to.
"""

import glob
import importlib
from pathlib import Path

import pytest
import torch
from torch_npu import guard, settings
from torch_npu.npu import devices

from tests.emulator.processes import run

# module -> names that verl 0.6.0, vLLM 0.11.0, vllm-ascend 0.11.0rc1, MindSpeed 35da6ac, transformers, Ray import
IMPORTED = {
    "acl": "rt get_soc_name",
    "acl.rt": "memcpy get_device_count",
    "torch_npu": (
        "__version__ npu profiler unsupported_dtype npu_fusion_attention npu_rotary_mul npu_rms_norm npu_swiglu"
    ),
    "torch_npu.version": "__version__",
    "torch_npu.npu": (
        "mstx _lazy_call device Stream stream current_stream get_soc_version set_compile_mode mem_get_info "
        "memory_stats manual_seed manual_seed_all get_device_properties empty_cache init Event"
    ),
    "torch_npu.npu.streams": "Event Stream",
    "torch_npu.npu.memory": "NPUPluggableAllocator MemPool use_mem_pool change_current_allocator",
    "torch_npu._C": "_npu_get_soc_version _NPUTaskGroupHandle _distributed_c10d",
    "torch_npu._C._distributed_c10d": "ProcessGroupHCCL",
    "torch_npu.op_plugin.atb._atb_ops": "_register_atb_extensions",
    "torch_npu.profiler": (
        "profile schedule tensorboard_trace_handler _ExperimentalConfig ProfilerActivity ProfilerLevel "
        "AiCMetrics ExportType dynamic_profile"
    ),
    "torch_npu.profiler.dynamic_profile": "init step",
    "torch_npu.utils.collect_env": "get_cann_version",
    "torch_npu.utils.flops_count": "FlopsCounter",
    "torchair": "register_fx_node_ge_converter patch_for_hcom ge scope",
    "torchair.ge": "Tensor TensorSpec DataType",
    "torchair.scope": "npu_stream_switch npu_wait_tensor super_kernel",
    "torch.npu": (
        "is_available device_count current_device set_device synchronize ExternalEvent NPUGraph graph "
        "graph_pool_handle graph_task_group_begin graph_task_group_end graph_task_update_begin "
        "graph_task_update_end get_device_name default_stream default_generators is_bf16_supported "
        "memory_allocated memory_reserved max_memory_allocated max_memory_reserved reset_peak_memory_stats "
        "reset_max_memory_allocated set_option FloatTensor BFloat16Tensor get_rng_state set_rng_state "
        "set_stream config amp"
    ),
    "torch.npu.random": "get_rng_state get_rng_state_all",
    "torch.npu.memory": "NPUPluggableAllocator MemPool use_mem_pool",
    "torch.npu.amp": "autocast GradScaler",
    "torch.distributed": "is_hccl_available",
}


@pytest.mark.parametrize("name", IMPORTED)
def test_every_name_that_the_pins_import_is_there(name):
    module = importlib.import_module(name)
    missing = [n for n in IMPORTED[name].split() if not hasattr(module, n)]
    assert not missing


def test_nested_names_of_the_device_module():
    assert torch.npu.config.allow_internal_format is True
    assert torch.version.cann == "8.3.RC1"
    options = importlib.import_module("torch_npu._C._distributed_c10d").ProcessGroupHCCL.Options()
    assert options.hccl_config == {}


def test_import_torch_is_enough():
    assert (
        run("import torch; print(torch.ones(3, device='npu').sum().item(), torch.npu.is_available())").stdout
        == "3.0 True\n"
    )


def test_torch_npu_may_be_imported_first():
    assert run("import torch_npu, torch; print(torch.ones(2).npu().device)").stdout == "npu:0\n"


def test_torch_can_be_imported_without_it():
    code = "import torch, sys; print('torch_npu' in sys.modules)"
    assert run(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout == "False\n"


def test_acl_needs_no_torch():
    code = "import acl, sys; print(acl.rt.get_device_count(), acl.get_soc_name(), 'torch' in sys.modules)"
    assert run(code, NPU_EMULATOR_DEVICES="3").stdout == "(3, 0) Ascend910B2 False\n"


def test_refuses_beside_another_torch_npu(tmp_path):
    other = tmp_path / "torch_npu-2.7.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.7.1.post9\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import torch"
    result = run(code, check=False)
    assert result.returncode
    assert "found torch_npu 2.7.1.post9" in result.stderr
    assert "off PYTHONPATH" in result.stderr


def test_refuses_beside_an_npu(monkeypatch):
    monkeypatch.setattr(glob, "glob", lambda pattern: [pattern.replace("[0-9]*", "0")])
    with pytest.raises(guard.EmulatorRefused, match="found /dev/davinci0"):
        guard.check(Path("/anywhere"))


@pytest.mark.parametrize(
    "name, value, read",
    [
        ("NPU_EMULATOR_DEVICES", "none", settings.installed_devices),
        ("NPU_EMULATOR_DEVICES", "0", settings.installed_devices),
        ("NPU_EMULATOR_MEMORY_GIB", "-1", settings.memory_bytes),
        ("NPU_EMULATOR_POISON", "yes", settings.poison_level),
        ("NPU_EMULATOR_DEFER", "maybe", settings.deferred_copies),
        ("NPU_EMULATOR_SOC", "999", settings.soc_version),
    ],
)
def test_an_unusable_setting_names_itself(monkeypatch, name, value, read):
    monkeypatch.setenv(name, value)
    with pytest.raises(settings.SettingError, match=f"{name} must .*found '?{value}") as error:
        read()
    assert "Unset it" in str(error.value)


@pytest.mark.parametrize(
    "visible, expected",
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("1,3", [1, 3]),
        ("0,9", [0]),  # beyond the machine's devices: cut off
        ("3,1", []),  # the runtime wants ascending order
        ("0,1x,2", [0, 1]),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices(monkeypatch, visible, expected):
    monkeypatch.setenv("NPU_EMULATOR_DEVICES", "4")
    if visible is None:
        monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    assert devices.visible_devices() == expected


def test_visible_devices_are_fixed_by_the_first_use_not_by_the_import():
    code = """
import os, torch
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1,2"
print(torch.npu.device_count())
torch.zeros(1, device="npu:1")
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0"
print(torch.npu.device_count())
try: torch.zeros(1, device="npu:2")
except RuntimeError as error: print("refused")
"""
    assert run(code).stdout.split() == ["2", "2", "refused"]


def test_a_process_without_devices():
    code = "import torch; print(torch.npu.is_available(), torch.npu.device_count()); torch.npu.manual_seed(1)"
    assert run(code, ASCEND_RT_VISIBLE_DEVICES="").stdout == "False 0\n"


def test_a_forked_child_must_not_use_the_device():
    code = """
import os, torch
torch.ones(1).npu()
pid = os.fork()
if pid == 0:
    try: torch.npu.current_device()
    except RuntimeError as error: os._exit(7 if "spawn" in str(error) else 1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run(code).stdout == "7\n"
