"""Makes megatron-core 0.12.1 use this package: one hook per Megatron module, each with its reason.

`install()` is called when megatron.core is about to be imported; a second call does nothing. That torch.compile has no
NPU code generator concerns more than TransformerEngine and is torch_npu.drift's affair.
"""

import functools
import sys
from pathlib import Path

import torch
from torch_npu import import_hooks

EXTENSION = "megatron.core.extensions.transformer_engine"

# The TransformerEngine release whose interface `extension` follows; Megatron decides by it. From 2.2 on it would ask
# for fused interleaved rotary embedding and fp8 recipes.
TE_VERSION = "2.1.0"


def _version(module):
    """Megatron asks for TransformerEngine's version through the package's metadata, which is not there."""
    from packaging.version import Version

    module._te_version = Version(TE_VERSION)


def _no_fp8(module):
    """The distributed optimizer calls this for its fp8 parameters, none here; without TransformerEngine it raises."""
    quantise = module._quantize_param_shard_impl

    @functools.wraps(quantise)
    def quantise_if_any(model_params, *arguments, **keywords):
        return quantise(model_params, *arguments, **keywords) if model_params else None

    module._quantize_param_shard_impl = quantise_if_any


def _swiglu(module):
    """The MLP's and the experts' activation runs as npu_swiglu, as MindSpeed makes it."""
    from . import swiglu

    for name in ("SwiGLUFunction", "BiasSwiGLUFunction", "WeightedSwiGLUFunction"):
        setattr(module, name, getattr(swiglu, name))


def _adam(module):
    """torch.optim.AdamW, Megatron's replacement for a missing FusedAdam, does not survive its checkpoints."""
    from .optimizer import FusedAdam

    module.Adam = FusedAdam
    if hasattr(module, "HAVE_APEX_OR_TE"):
        module.HAVE_APEX_OR_TE = True


def _cuda_type_names():
    """The distributed optimizer takes parameters by Tensor.type(), torch.cuda.*; MindSpeed renames the NPU's types."""
    type_of = torch.Tensor.type

    @functools.wraps(type_of)
    def renamed(self, *arguments, **keywords):
        answer = type_of(self, *arguments, **keywords)
        return answer.replace("torch.npu.", "torch.cuda.") if isinstance(answer, str) else answer

    torch.Tensor.type = renamed


# The modules that come with megatron.core itself and import names of the extension if they can.
IMPORTERS = ("megatron.core.transformer.moe.moe_utils", "megatron.core.models.common.embeddings.rope_utils")

HOOKS = {
    "megatron.core.utils": _version,
    "megatron.core.fp8_utils": _no_fp8,
    "megatron.core.fusions.fused_bias_swiglu": _swiglu,
    "megatron.core.optimizer": _adam,
    "megatron.core.optimizer.distrib_optimizer": _adam,
}


@functools.cache
def install() -> None:
    """Registers the stand-in and adapts Megatron; a second call does nothing.

    RuntimeError when Megatron has looked for TransformerEngine already: some of its modules keep what they found.
    """
    late = [name for name in IMPORTERS if name in sys.modules]
    if late:
        raise RuntimeError(
            f"npu_transformer_engine.install.install() must come before {', '.join(late)} is imported, "
            "found it imported; call it first, or leave it to `import torch`, which does it on an emulated NPU"
        )
    import torch_npu.contrib.transfer_to_npu  # noqa: F401  torch.cuda.* and device "cuda" mean the NPU, as on a device

    _cuda_type_names()
    import_hooks.replace(EXTENSION, str(Path(__file__).with_name("extension.py")))
    for name, hook in HOOKS.items():
        import_hooks.after(name)(hook)
    import_hooks.activate()
