"""Positions of packed sequences' tokens, so that one rotary embedding turns all of them at once."""

import torch
from megatron.core import parallel_state
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# cu_seqlens -> (what the layout was made for, the layout). An entry goes with its tensor, and that lives as long as its
# micro-batch: through all layers, their recomputation, and micro-batches in between.
_layouts = WeakTensorKeyDictionary()

Layout = tuple[Tensor, int, int]  # positions [tokens], tokens of this rank, length of the longest sequence


def gather(freqs: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Frequencies [tokens, 1, 1, dim] of this context parallel rank's tokens.

    freqs: [longest sequence or more, 1, 1, dim]. cu_seqlens: [sequences + 1], where whole sequences begin and end.
    Raises RuntimeError where lengths decrease, cannot be dealt to the ranks, exceed freqs or do not add up to `tokens`.
    """
    positions, expected, longest = _layout(cu_seqlens, freqs.device)
    if expected != tokens:
        raise RuntimeError(
            f"RoPE of packed sequences: expected {expected} tokens on this rank by cu_seqlens, found {tokens}; pass "
            "the cu_seqlens, padding included, that the tokens were packed with"
        )
    if longest > freqs.size(0):
        raise RuntimeError(
            f"RoPE of packed sequences: expected frequencies for {longest} positions, the longest sequence, found "
            f"{freqs.size(0)}; max_seqlen_q and max_seqlen_kv must include its padding"
        )
    return freqs.index_select(0, positions)


def _layout(cu_seqlens: Tensor, device: torch.device) -> Layout:
    """Made once for a cu_seqlens. A change in place shows in its version; tensors of inference mode do not have one."""
    cp_size = parallel_state.get_context_parallel_world_size()
    cp_rank = parallel_state.get_context_parallel_rank()
    if cu_seqlens.is_inference():
        return _new_layout(cu_seqlens, cp_size, cp_rank, device)
    made_for = cu_seqlens._version, cp_size, cp_rank, device
    known = _layouts.get(cu_seqlens)
    if known is None or known[0] != made_for:
        known = _layouts[cu_seqlens] = made_for, _new_layout(cu_seqlens, cp_size, cp_rank, device)
    return known[1]


def _new_layout(cu_seqlens: Tensor, cp_size: int, cp_rank: int, device: torch.device) -> Layout:
    """Rank r has chunks r and 2 * cp_size - 1 - r of each sequence's 2 * cp_size.

    Made on the host, which needs the lengths anyway to check them, and copied to the device once.
    """
    lengths = cu_seqlens.to("cpu", torch.int64).diff()
    _check(lengths, cp_size)
    longest = int(lengths.max()) if len(lengths) else 0
    lengths //= cp_size
    tokens = int(lengths.sum())
    offsets = torch.arange(tokens) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    chunk = (lengths // 2).repeat_interleave(lengths)
    skipped = torch.where(offsets < chunk, cp_rank, 2 * cp_size - 2 - cp_rank)  # chunks of other ranks before the token
    return (offsets + chunk * skipped).to(device), tokens, longest


def _check(lengths: Tensor, cp_size: int) -> None:
    if (lengths < 0).any():
        raise RuntimeError(
            f"RoPE of packed sequences: expected cu_seqlens that never decreases, found lengths {lengths.tolist()}"
        )
    if cp_size > 1 and (lengths % (2 * cp_size)).any():
        raise RuntimeError(
            f"RoPE of packed sequences: expected lengths that context parallelism of {cp_size} divides into "
            f"{2 * cp_size} chunks, found {lengths.tolist()}; pad each sequence and pass its cu_seqlens_q_padded"
        )
