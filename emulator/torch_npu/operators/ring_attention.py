"""npu_ring_attention_update: joins two attentions over different keys (MindSpeed 35da6ac)."""

import itertools

import torch

from .registry import check, operator

LAYOUTS = ("SBH", "TND")


def _update_meta(previous, maximum, total, *_):
    return torch.empty_like(previous), torch.empty_like(maximum), torch.empty_like(total)


@operator(
    "npu_ring_attention_update(Tensor prev_attn_out, Tensor prev_softmax_max, Tensor prev_softmax_sum, "
    "Tensor cur_attn_out, Tensor cur_softmax_max, Tensor cur_softmax_sum, Tensor? actual_seq_qlen=None, "
    "str? layout='SBH') -> (Tensor, Tensor, Tensor)",
    meta=_update_meta,
    namespace="mindspeed_extension",
    export=False,
)
def npu_ring_attention_update(
    prev_attn_out,
    prev_softmax_max,
    prev_softmax_sum,
    cur_attn_out,
    cur_softmax_max,
    cur_softmax_sum,
    actual_seq_qlen,
    layout,
):
    """-> result, softmax_max and softmax_sum over the keys of both.

    SBH: results [S, B, H], statistics [B, N, S, 8]. TND: results [T, N, D], statistics [T, N, 8] with each sequence's
    block laid out [N, s, 8]; actual_seq_qlen int64: 0 and the ends of the sequences.
    """
    name = "npu_ring_attention_update"
    check(layout in LAYOUTS, f"{name}: layout must be one of {', '.join(LAYOUTS)}, but is {layout}")
    check(
        layout != "TND" or (actual_seq_qlen is not None and actual_seq_qlen.dtype == torch.int64),
        lambda: f"{name}: layout TND needs actual_seq_qlen in int64, found {getattr(actual_seq_qlen, 'dtype', None)}",
    )
    maximum = torch.maximum(prev_softmax_max, cur_softmax_max)
    previous = prev_softmax_sum * torch.exp(prev_softmax_max - maximum)
    current = cur_softmax_sum * torch.exp(cur_softmax_max - maximum)
    total = previous + current
    spread = _spread_tnd if layout == "TND" else _spread_sbh
    shares = [spread(part / total, prev_attn_out, actual_seq_qlen) for part in (previous, current)]
    result = prev_attn_out.float() * shares[0] + cur_attn_out.float() * shares[1]
    return result.to(prev_attn_out.dtype), maximum, total


def _spread_sbh(share, out, _):
    """[B, N, S, 8] -> [S, B, H]."""
    width = out.shape[-1] // share.shape[1]
    return share[..., :1].permute(2, 0, 1, 3).expand(-1, -1, -1, width).flatten(2)


def _spread_tnd(share, out, ends):
    """[T, N, 8] in blocks of [N, s, 8] -> [T, N, 1]."""
    heads = out.shape[1]
    lengths = [b - a for a, b in itertools.pairwise(ends.tolist())]
    blocks = share.reshape(-1, share.shape[-1])[:, :1].split([n * heads for n in lengths])
    return torch.cat([block.reshape(heads, -1, 1).transpose(0, 1) for block in blocks])
