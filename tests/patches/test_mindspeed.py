"""What each patch of MindSpeed is worth, on small modules of the pinned shape: MindSpeed is on no package index."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.patches.upstream_code import apply, definition

LINEAR = """
import torch


class MindSpeedTELayerNormColumnParallelLinear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self._register_load_state_dict_pre_hook(
            lambda state_dict, prefix, *args, **kwargs: state_dict.setdefault(
                f'{prefix}_extra_state'
            )
        )

    def forward(self, x):
        return x * self.weight
"""
P2P = """
class OptimizeP2PCommFeature:
    def register_patches(self, patch_manager, args):
        wrap = core_transformer_config_from_args_wrapper
        if int(args.pipeline_model_parallel_size) >= 2:
            patch_manager.register_patch(
                "megatron.training.arguments.core_transformer_config_from_args",  # noqa
                core_transformer_config_from_args_wrapper,
            )
"""
ARGS = """
def get_full_args():
    try:
        from megatron.training.global_vars import get_args, _GLOBAL_ARGS
        full_args = get_args()
        if full_args is None:
            full_args = get_mindspeed_args()
    except ImportError:
        full_args = get_mindspeed_args()
    return full_args
"""


@pytest.fixture
def root(write):
    """A root with one module of MindSpeed."""
    return lambda module, text: write({module.replace(".", "/") + ".py": text})


def test_a_state_dict_loads_strictly(root):
    module = "mindspeed.te.pytorch.module.layernorm_column_parallel_linear"
    name, place = "MindSpeedTELayerNormColumnParallelLinear", root(module, LINEAR)
    broken = definition(place, module, name, {"torch": torch})()
    saved = broken.state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"_extra_state\""):
        broken.load_state_dict(dict(saved))
    assert apply("mindspeed/extra-state", place).state == "pending"
    mended = definition(place, module, name, {"torch": torch})()
    mended.load_state_dict({"weight": torch.zeros(2)})
    assert mended.weight.tolist() == [0, 0] and mended.state_dict().keys() == saved.keys()


def test_without_the_hook_nothing_is_added(root):
    module = "mindspeed.te.pytorch.module.layernorm_column_parallel_linear"
    place = root(module, LINEAR.replace("_register_load_state_dict_pre_hook", "_other"))
    verdict = apply("mindspeed/extra-state", place)
    assert (verdict.state, verdict.reason) == ("not needed", "no hook adds _extra_state")


def test_pipelines_do_not_need_megatron_training(root, monkeypatch):
    module = "mindspeed.features_manager.pipeline_parallel.optimize_p2p_comm"
    place, names = root(module, P2P), {"core_transformer_config_from_args_wrapper": len}
    seen = []
    manager = SimpleNamespace(register_patch=lambda *patch: seen.append(patch))
    for _ in range(2):
        feature = definition(place, module, "OptimizeP2PCommFeature", names)()
        feature.register_patches(manager, SimpleNamespace(pipeline_model_parallel_size="2"))
        if not _:
            assert len(seen) == 1, "the fault: registered though megatron.training is not there"
            apply("mindspeed/p2p-guard", place)
    assert len(seen) == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    feature.register_patches(manager, SimpleNamespace(pipeline_model_parallel_size="2"))
    assert len(seen) == 2, "and where it is there it is registered"


def test_arguments_are_mindspeeds_until_megatron_has_its_own(root, monkeypatch):
    """Against get_args as Megatron core_v0.12.1 has it: an assertion on what it holds."""
    place = root("mindspeed.args_utils", ARGS)
    held = ModuleType("megatron.training.global_vars")

    def get_args():
        assert held._GLOBAL_ARGS is not None, "args is not initialized."
        return held._GLOBAL_ARGS

    held.get_args, held._GLOBAL_ARGS = get_args, None
    monkeypatch.setitem(sys.modules, "megatron.training", ModuleType("megatron.training"))
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", held)
    names = {"get_mindspeed_args": lambda: "MindSpeed's"}
    with pytest.raises(AssertionError, match="args is not initialized"):
        definition(place, "mindspeed.args_utils", "get_full_args", names)()
    apply("mindspeed/full-args", place)
    mended = definition(place, "mindspeed.args_utils", "get_full_args", names)
    assert mended() == "MindSpeed's"
    held._GLOBAL_ARGS = SimpleNamespace(tp=1)
    assert mended() is held._GLOBAL_ARGS
