"""Rotary position embedding by npu_rotary_mul, for Megatron's apply_rope_fusion."""

import torch
import torch_npu


def _rotate(x, freqs):
    """x [s, b, heads, d], freqs [s, 1, 1, rotated]: rotates the first `rotated` values of d, halves as pairs."""
    size = freqs.shape[-1]
    cos, sin = freqs.cos().to(x.dtype), freqs.sin().to(x.dtype)
    rotated = torch_npu.npu_rotary_mul(x[..., :size].contiguous(), cos, sin)
    return torch.cat((rotated, x[..., size:]), dim=-1) if size < x.shape[-1] else rotated


def fused_apply_rotary_pos_emb(t, freqs, transpose_output_memory: bool = False, interleaved: bool = False):
    """t [s, b, heads, d], freqs [s, 1, 1, d]; transpose_output_memory is a hint about strides and changes no value."""
    if interleaved:
        raise ValueError("apply_rope_fusion is for rotary_interleaved=False here, found True; switch one of them off")
    return _rotate(t, freqs)


def fused_apply_rotary_pos_emb_thd(t, cu_seqlens, freqs, cp_size: int = 1, cp_rank: int = 0):
    """Packed t [tokens, heads, d]; cu_seqlens [sequences + 1] before context parallelism; freqs [longest, 1, 1, d].

    With context parallelism rank r's share of a sequence is chunks r and 2 * cp - 1 - r of 2 * cp.
    """
    positions = []
    for length in (cu_seqlens[1:] - cu_seqlens[:-1]).tolist():
        places = torch.arange(length)
        if cp_size > 1:
            chunks = places.chunk(2 * cp_size)
            places = torch.cat((chunks[cp_rank], chunks[-1 - cp_rank])) if length else places
        positions.append(places)
    return _rotate(t.unsqueeze(1), freqs[torch.cat(positions).to(freqs.device)]).squeeze(1)
