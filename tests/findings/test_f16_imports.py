"""F16: the commercial matrix's verl does not import with transformers 4.57.1, its MindSpeed refuses the key of pp."""

import pytest

STACKS = ("commercial",)


def verl_imports(cure):
    """Whether verl's FSDP actor imports, or the error. packages/ beside the checkouts holds transformers 4.55.0."""
    import importlib
    import sys

    if cure != "transformers 4.55.0":
        sys.path[:] = [path for path in sys.path if not path.endswith("/packages")]
    if cure == "patch verl/index-first-axis":
        index_first_axis_is_back()
    try:
        importlib.import_module("verl.workers.actor.dp_actor")
    except ImportError as error:
        return str(error)
    return True


def index_first_axis_is_back():
    """Stands for the patch: the four names, of rows by index."""
    import einops
    from transformers.integrations import npu_flash_attention as module

    module.index_first_axis = lambda rows, indices: rows[indices]
    module.rearrange = einops.rearrange
    for name in ("pad_input", "unpad_input"):
        if not hasattr(module, name):
            setattr(module, name, None)


def repatched(whole_megatron, cure):
    """Whether MindSpeed takes the key of pp as verl's worker gives it; the error where it does not.

    With a whole clone of Megatron on the path, or with the installed package, which has megatron.core only.
    """
    import sys

    if not whole_megatron:
        sys.path[:] = [path for path in sys.path if not path.endswith("/Megatron-LM")]
    from mindspeed import args_utils, megatron_adaptor
    from mindspeed.patch_utils import MindSpeedPatchesManager as Manager

    if cure == "patch mindspeed/p2p-guard":
        register = Manager.register_patch

        def register_what_is_there(target, *others, **named):
            """Stands for the patch: nothing of megatron.training is replaced where there is none."""
            if not target.startswith("megatron.training"):
                register(target, *others, **named)

        Manager.register_patch = staticmethod(register_what_is_there)
    if cure == "patch mindspeed/full-args":
        # Stands for the patch: arguments that nobody initialised are MindSpeed's own.
        megatron_adaptor.get_full_args = args_utils.get_mindspeed_args
    try:
        megatron_adaptor.repatch({"use_flash_attn": True, "pipeline_model_parallel_size": 2})
    except (ModuleNotFoundError, AssertionError) as error:
        return str(error)
    return True


def test_verl_does_not_import(on):
    assert "cannot import name 'index_first_axis'" in on(verl_imports, None)


@pytest.mark.parametrize("cure", ["transformers 4.55.0", "patch verl/index-first-axis"])
def test_with_a_cure_verl_imports(on, cure):
    assert on(verl_imports, cure) is True


def test_mindspeed_wants_megatron_training(on):
    assert "No module named 'megatron.training'" in on(repatched, False, None)
    assert on(repatched, False, "patch mindspeed/p2p-guard") is True


def test_mindspeed_wants_its_arguments(on):
    assert "args is not initialized." in on(repatched, True, None)
    assert on(repatched, True, "patch mindspeed/full-args") is True
