"""Makes megatron-core 0.12.1 use this package: one hook per Megatron module, each with its reason.

`install()` may be called before, while or after Megatron is imported, and more than once: hooks of modules that are
there run at once, the others right after the module's import.
"""

import functools
import importlib.abc
import importlib.util
import sys
from pathlib import Path

import torch

EXTENSION = "megatron.core.extensions.transformer_engine"

# The TransformerEngine release whose interface `extension` follows; Megatron decides by it. From 2.2 on it would ask
# for fused interleaved rotary embedding and fp8 recipes.
TE_VERSION = "2.1.0"

HOOKS = {}


def after(*names: str):
    """Registers a function of the module for the modules `names`."""

    def register(hook):
        HOOKS.update(dict.fromkeys(names, hook))
        return hook

    return register


@after("megatron.core.utils")
def _version(module):
    """Megatron asks for TransformerEngine's version through the package's metadata, which is not there."""
    from packaging.version import Version

    module._te_version = Version(TE_VERSION)


@after("megatron.core.jit")
def _no_compiler(module):
    """jit_fuser is torch.compile, whose default compiler generates code for CUDA and CPU only."""
    module.jit_fuser = lambda function: function


@after("megatron.core.tensor_parallel.random")
def _random_state(module):
    """See `random`."""
    from . import random

    module._get_cuda_rng_state, module._set_cuda_rng_state = random.get_rng_state, random.set_rng_state


@after("megatron.core.fp8_utils")
def _no_fp8(module):
    """The distributed optimizer calls this for its fp8 parameters, none here; without TransformerEngine it raises."""
    quantise = module._quantize_param_shard_impl

    @functools.wraps(quantise)
    def quantise_if_any(model_params, *arguments, **keywords):
        return quantise(model_params, *arguments, **keywords) if model_params else None

    module._quantize_param_shard_impl = quantise_if_any


@after("megatron.core.fusions.fused_bias_swiglu")
def _swiglu(module):
    """The MLP's and the experts' activation runs as npu_swiglu, as MindSpeed makes it."""
    from . import swiglu

    for name in ("SwiGLUFunction", "BiasSwiGLUFunction", "WeightedSwiGLUFunction"):
        setattr(module, name, getattr(swiglu, name))


@after("megatron.core.optimizer", "megatron.core.optimizer.distrib_optimizer")
def _adam(module):
    """torch.optim.AdamW, Megatron's replacement for a missing FusedAdam, does not survive its checkpoints."""
    from .optimizer import FusedAdam

    module.Adam = FusedAdam
    if hasattr(module, "HAVE_APEX_OR_TE"):
        module.HAVE_APEX_OR_TE = True


@after("megatron.core.models.common.embeddings.rope_utils")
def _rotary(module):
    """Imported with megatron.core itself, so perhaps before the extension was registered."""
    from . import rotary

    module.fused_apply_rotary_pos_emb = rotary.fused_apply_rotary_pos_emb
    module.fused_apply_rotary_pos_emb_thd = rotary.fused_apply_rotary_pos_emb_thd


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the extension in this folder, and lets the hook of a module run after its import."""

    def __init__(self):
        self.searching = False

    def find_spec(self, name, path=None, target=None):
        if name == EXTENSION:
            return importlib.util.spec_from_file_location(name, Path(__file__).with_name("extension.py"))
        if name not in HOOKS or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None:
            spec.loader.exec_module = _then_hook(spec.loader.exec_module, HOOKS[name])
        return spec


def _then_hook(execute, hook):
    @functools.wraps(execute)
    def execute_and_hook(module):
        execute(module)
        hook(module)

    return execute_and_hook


def _cuda_type_names():
    """The distributed optimizer takes parameters by Tensor.type(), torch.cuda.*; MindSpeed renames the NPU's types."""
    type_of = torch.Tensor.type

    @functools.wraps(type_of)
    def renamed(self, *arguments, **keywords):
        answer = type_of(self, *arguments, **keywords)
        return answer.replace("torch.npu.", "torch.cuda.") if isinstance(answer, str) else answer

    torch.Tensor.type = renamed


def _no_compiler_for_the_trainer():
    """verl and Megatron compile small functions with the default compiler, which has no NPU code generator.

    MindSpeed makes torch.compile do nothing at all, also for the rollout engine in the same process, whose graph mode
    then captures nothing; here only functions of verl and Megatron stay as they are.
    """
    compile_ = torch.compile

    @functools.wraps(compile_)
    def compile_others(model=None, **keywords):
        if model is None:
            return lambda function: compile_others(function, **keywords)
        owner = getattr(model, "__module__", None) or ""
        return model if owner.partition(".")[0] in ("verl", "megatron") else compile_(model, **keywords)

    torch.compile = compile_others


@functools.cache
def install() -> None:
    """Registers the stand-in and adapts Megatron; a second call does nothing."""
    import torch_npu.contrib.transfer_to_npu  # noqa: F401  torch.cuda.* and device "cuda" mean the NPU, as on a device

    _cuda_type_names()
    _no_compiler_for_the_trainer()
    sys.meta_path.insert(0, _Finder())
    for name, hook in HOOKS.items():
        if name in sys.modules:
            hook(sys.modules[name])
