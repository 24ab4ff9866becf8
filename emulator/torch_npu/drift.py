"""Every difference between the pinned code and what it runs on here, with its reason. The only place for such things.

Three kinds: the installed torch is newer than the pins' torch 2.7.1; a compiled module needs CANN; a package that
exists on NPU machines (MindSpeed) is absent. A drift of the first kind goes away when the pins move to a newer torch.
"""

import functools
import importlib.util
import inspect
import types
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from . import import_hooks, settings
from .operators import JIT_EXTENSIONS

EMULATOR = Path(__file__).resolve().parent.parent


def activate() -> None:
    """Put all drifts in place. Called once, when torch_npu is imported."""
    _torch()
    _vllm()
    _vllm_ascend()
    _megatron()
    _mindspeed()
    import_hooks.activate()


def _torch():
    """torch >= 2.9 takes only Python integers as split sizes; verl and Megatron pass numpy integers and tensors."""
    original = c10d.all_to_all_single

    @functools.wraps(original)
    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, *args, **kwargs):
        return original(output, input, _integers(output_split_sizes), _integers(input_split_sizes), *args, **kwargs)

    dist.all_to_all_single = c10d.all_to_all_single = all_to_all_single


def _integers(sizes):
    return None if sizes is None else [int(size) for size in sizes]


def _vllm():
    """torch >= 2.9 gives more arguments to the function that vLLM 0.11.0 puts in place of Dynamo's inline_call."""
    reason = "torch >= 2.9 passes more arguments to inline_call_"
    module = "vllm.compilation.decorators"
    old = "def patched_inline_call(parent, func, args, kwargs):"
    import_hooks.edit(module, old, old.replace("kwargs)", "kwargs, **more)"), reason)
    old = "return inline_call(parent, func, args, kwargs)\n"
    import_hooks.edit(module, old, old.replace("kwargs)", "kwargs, **more)"), reason)


def _vllm_ascend():
    """vllm-ascend's wheel has compiled modules that link to CANN: a stand-in is loaded in their place, also from a
    source tree, which has none. Its _build_info is written when it is compiled."""
    import_hooks.replace("vllm_ascend.vllm_ascend_C", str(EMULATOR / "vllm_ascend_C.py"))
    import_hooks.replace("vllm_ascend._build_info", _build_info)

    @import_hooks.after("vllm_ascend.worker.model_runner_v1")
    def production_ranks(module):
        """Experts' tokens travel by MC2 from 16 ranks on, by all-gather below: an engine that was made small is asked
        with the ranks that it stands for, so that it takes the path of production."""
        if ranks := settings.engine_ranks():
            runner = module.NPUModelRunner
            runner._select_moe_comm_method = _asking(runner._select_moe_comm_method, ranks)


class _OtherWorld:
    """A parallel config that says another world size."""

    def __init__(self, config, ranks):
        self._config, self.world_size_across_dp = config, ranks

    def __getattr__(self, name):
        return getattr(self._config, name)


def _asking(select, ranks):
    @functools.wraps(select)
    def choose(runner, *arguments, **named):
        own = runner.parallel_config
        runner.parallel_config = _OtherWorld(own, ranks)
        try:
            return select(runner, *arguments, **named)
        finally:
            runner.parallel_config = own

    return choose


def _build_info(module):
    module.__soc_version__ = "ASCEND910B1"
    module.__sleep_mode_enabled__ = True


def _megatron():
    @import_hooks.after("megatron.core.dist_checkpointing.strategies.filesystem_async")
    def serialization_format(module):
        """torch >= 2.9: the private _write_item that Megatron-core 0.12.1 calls has one more required argument."""
        original = module._write_item
        if "serialization_format" not in inspect.signature(original).parameters:
            return
        from torch.distributed.checkpoint.filesystem import SerializationFormat

        module._write_item = functools.partial(original, serialization_format=SerializationFormat.TORCH_SAVE)

    if importlib.util.find_spec("mindspeed") is not None:
        return

    @import_hooks.before("megatron.core")
    def transformer_engine(_):
        """MindSpeed absent: torch.cuda means torch.npu, and a stand-in serves for TransformerEngine."""
        from npu_transformer_engine.install import install

        install()
        # torch >= 2.9 asks before a broadcast of tensors that say is_cuda; torch_npu has no answer, MindSpeed says 9.0
        torch.cuda.get_device_capability = lambda device=None: (9, 0)

    @import_hooks.after("megatron.core.jit")
    def eager_fuser(module):
        """Inductor has no npu backend here; MindSpeed, where it exists, makes the fuser an identity as well."""
        module.jit_fuser = _identity

    # as above, for vocab_parallel_entropy; vLLM's graph mode needs the real torch.compile, so it stays for all others
    reason = "Inductor has no npu backend here"
    import_hooks.edit("verl.utils.megatron.tensor_parallel", "        @torch.compile(dynamic=True)\n", "", reason)


def _identity(function=None, **options):
    """torch.compile that compiles nothing, with or without options."""
    return (lambda f: f) if function is None else function


def _mindspeed():
    """What MindSpeed 35da6ac needs here, where it is importable."""

    @import_hooks.after("mindspeed.op_builder.builder")
    def emulated_extensions(module):
        """Its C++ extensions are compiled on first use and need CANN: registered operators answer for them."""
        module.MindSpeedOpBuilder.load = _load_extension

    @import_hooks.after("mindspeed.op_builder.atb_builder")
    def emulated_atb_extensions(module):
        """Its own `load` asks for the installation of ATB (cann-nnal) before it compiles."""
        module.AtbOpBuilder.load = _load_extension

    # torch >= 2.9: broadcast asks torch.cuda.get_device_capability(device) of tensors that say is_cuda; the functions
    # that MindSpeed puts in its place take no argument
    for module in ("mindspeed.core.fusions.grouped_matmul", "mindspeed.core.transformer.moe.grouped_gemm_util"):

        @import_hooks.after(module)
        def takes_a_device(module):
            original = module.get_device_capability
            module.get_device_capability = lambda *device: original()


def _load_extension(builder, verbose=True):
    """In place of MindSpeedOpBuilder.load: the functions of the extension of the builder's name."""
    functions = JIT_EXTENSIONS.get(builder.name)
    if functions is None:
        known = ", ".join(sorted(JIT_EXTENSIONS))
        raise NotImplementedError(
            f"The emulated NPU has no operators for MindSpeed's C++ extension {builder.name!r}, only for {known}. "
            "Switch off the feature that loads it."
        )
    return types.SimpleNamespace(**functions)
