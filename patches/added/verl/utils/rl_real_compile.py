"""The true torch.compile for the rollout engine, in processes where MindSpeed has put an identity in its place.

MindSpeed replaces torch.compile for Megatron's sake (35da6ac and 1cdd0ab, features_manager/megatron_basic/
requirements_basic.py:32) and cannot be told not to. vLLM looks it up when it builds a model: with the identity nothing
is captured.
"""

import contextlib
import sys

import torch


@contextlib.contextmanager
def real_compile():
    """torch.compile is PyTorch's own inside, and what it was before afterwards; errors of the body pass through.

    Also right after MindSpeed's repatch(), before or inside: it keeps the original, and what it sets inside stays.
    """
    real, replaced = _original(), torch.compile
    if real is None or replaced is real:
        yield
        return
    torch.compile = real
    try:
        yield
    finally:
        if torch.compile is real:
            torch.compile = replaced


def _original():
    """What MindSpeed replaced, None where it replaced nothing; MindSpeed is not imported for it."""
    module = sys.modules.get("mindspeed.patch_utils")
    patch = module and module.MindSpeedPatchesManager.patches_info.get("torch.compile")
    return patch.orig_func if patch else None
