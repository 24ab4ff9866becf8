"""What importing MindSpeed does to Megatron, as far as a training on the emulated NPU needs it.

The emulator leaves Megatron to MindSpeed where there is one; this one hands it back to the emulator's stand-in for
TransformerEngine. Without the emulator it does nothing.
"""

import importlib.util


def repatch(settings):
    """verl's workers call it with `override_transformer_config`; there is nothing to switch here."""


def _hand_back():
    import torch
    from npu_transformer_engine.install import install
    from torch_npu import import_hooks

    install()
    torch.cuda.get_device_capability = lambda device=None: (9, 0)

    @import_hooks.after("megatron.core.jit")
    def eager_fuser(module):
        module.jit_fuser = _identity

    import_hooks.edit(
        "verl.utils.megatron.tensor_parallel", "        @torch.compile(dynamic=True)\n", "", "no Inductor here"
    )


def _identity(function=None, **options):
    return (lambda inner: inner) if function is None else function


if importlib.util.find_spec("npu_transformer_engine"):
    _hand_back()
