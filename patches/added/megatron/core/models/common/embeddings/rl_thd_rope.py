"""Frequencies of packed sequences' tokens, so that one rotary embedding turns all of them at once."""

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass
class _Layout:
    """Where the tokens of this rank stand in their sequences, and their frequencies since the first layer asked."""

    made_for: tuple
    positions: Tensor  # [tokens]
    longest: int  # length of the longest sequence
    freqs: Tensor | None = None  # what `gathered` was taken from; held, so that nothing else gets its address
    version: int = -1
    gathered: Tensor | None = None


# cu_seqlens -> its layout. An entry goes with its tensor, which lives as long as its micro-batch: through all layers,
# their recomputation, and micro-batches in between.
_layouts = WeakTensorKeyDictionary()


def gather(freqs: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Frequencies [tokens, 1, 1, dim] of this context parallel rank's tokens, once for all layers of a micro-batch.

    freqs: [longest sequence or more, 1, 1, dim]. cu_seqlens: [sequences + 1], where whole sequences begin and end.
    Raises RuntimeError where lengths decrease, cannot be dealt to the ranks, exceed freqs or do not add up to `tokens`.
    """
    layout = _layout(cu_seqlens, freqs.device)
    if len(layout.positions) != tokens:
        raise RuntimeError(
            f"RoPE of packed sequences: expected {len(layout.positions)} tokens on this rank by cu_seqlens, found "
            f"{tokens}; pass the cu_seqlens, padding included, that the tokens were packed with"
        )
    if layout.longest > freqs.size(0):
        raise RuntimeError(
            f"RoPE of packed sequences: expected frequencies for {layout.longest} positions, the longest sequence, "
            f"found {freqs.size(0)}; max_seqlen_q and max_seqlen_kv must include its padding"
        )
    if freqs.requires_grad or freqs.is_inference():
        return freqs.index_select(0, layout.positions)
    if not _holds(layout, freqs):
        layout.freqs, layout.version = freqs, freqs._version
        layout.gathered = freqs.index_select(0, layout.positions)
    return layout.gathered


def _holds(layout: _Layout, freqs: Tensor) -> bool:
    """Whether `gathered` is of these frequencies. Recomputation detaches them: another tensor of the same memory."""
    known = layout.freqs
    return known is not None and (known.data_ptr(), known.shape, known.stride(), known.dtype, layout.version) == (
        freqs.data_ptr(),
        freqs.shape,
        freqs.stride(),
        freqs.dtype,
        freqs._version,
    )


def _layout(cu_seqlens: Tensor, device: torch.device) -> _Layout:
    """Made once for a cu_seqlens. A change in place shows in its version; tensors of inference mode do not have one."""
    cp_size = parallel_state.get_context_parallel_world_size()
    cp_rank = parallel_state.get_context_parallel_rank()
    if cu_seqlens.is_inference() or torch.is_inference_mode_enabled():
        return _new_layout(cu_seqlens, cp_size, cp_rank, device)
    known = _layouts.get(cu_seqlens)
    if known is None or known.made_for != (cu_seqlens._version, cp_size, cp_rank, device):
        known = _layouts[cu_seqlens] = _new_layout(cu_seqlens, cp_size, cp_rank, device)
    return known


def _new_layout(cu_seqlens: Tensor, cp_size: int, cp_rank: int, device: torch.device) -> _Layout:
    """Rank r has chunks r and 2 * cp_size - 1 - r of each sequence's 2 * cp_size.

    Made on the host, which needs the lengths anyway to check them, and copied to the device once.
    """
    lengths = cu_seqlens.to("cpu", torch.int64).diff()
    _check(lengths, cp_size)
    longest = int(lengths.max()) if len(lengths) else 0
    lengths //= cp_size
    offsets = torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    chunk = (lengths // 2).repeat_interleave(lengths)
    skipped = torch.where(offsets < chunk, cp_rank, 2 * cp_size - 2 - cp_rank)  # chunks of other ranks before the token
    version = 0 if cu_seqlens.is_inference() else cu_seqlens._version
    return _Layout((version, cp_size, cp_rank, device), (offsets + chunk * skipped).to(device), longest)


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
