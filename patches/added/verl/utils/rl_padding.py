"""Takes the padding out of batches and puts it back, in plain PyTorch, differentiable.

The four names that verl imports from flash-attention on CUDA; `rearrange` is einops'.
"""

import torch
import torch.nn.functional as F
from einops import rearrange

__all__ = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]


def index_first_axis(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows `indices` [selected] of `values` [rows, ...]."""
    return values.index_select(0, indices)


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """[tokens, ...] at the places `indices` of a zero [batch, seqlen, ...]."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))


def unpad_input(hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None):
    """Tokens of [batch, seqlen, ...] that `attention_mask` [batch, seqlen] names, or that `unused_mask` keeps room for.

    Returns tokens [tokens, ...], their indices [tokens], cumulated lengths [batch + 1] (int32), the greatest length,
    and the lengths without the unused [batch] (int32).
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    return (
        index_first_axis(hidden_states.flatten(0, 1), indices),
        indices,
        F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)),
        int(lengths.max()),
        attention_mask.sum(-1, dtype=torch.int32),
    )
