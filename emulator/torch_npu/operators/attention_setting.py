"""What an attention operator of torch_npu is told: layout, masks and lengths, checked and in one place.

Checks and texts: op-plugin 691bf15, ops/opapi/FlashAttentionKernelNpuOpApi.cpp; sparse modes: the description of
npu_fusion_attention in codegen/templates/_op_plugin_docs.py there.
"""

import dataclasses
import itertools

import torch

from . import softmax_attention
from .registry import check

LAYOUTS = ("BSH", "SBH", "BNSD", "BSND", "TND")
COMPRESSED_MASK = 2048
STATISTICS_WIDTH = 8

_ORDER = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (1, 2, 0, 3)}
"""Where batch, head, position and width lie in a layout (H split into heads and width)."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """The arguments that forward and backward share."""

    heads: int
    layout: str
    mask: torch.Tensor | None
    scale: float
    keep_prob: float
    before: int
    after: int
    query_ends: tuple[int, ...]
    key_ends: tuple[int, ...]
    sparse_mode: int
    softmax_layout: str

    def split(self, tensor: torch.Tensor, width: int, ends: tuple[int, ...]) -> list[torch.Tensor]:
        """The tensor's sequences, each [N, S, D]."""
        if self.layout == "TND":
            return [tensor[a:b].transpose(0, 1) for a, b in itertools.pairwise((0, *ends))]
        if self.layout in ("BSH", "SBH"):
            tensor = tensor.unflatten(2, (-1, width)) if tensor.shape[2] else tensor.unsqueeze(-1)
        return list(tensor.permute(_ORDER[self.layout]))

    def join(self, pieces: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        """The inverse of `split`."""
        if self.layout == "TND":
            return torch.cat([p.transpose(0, 1) for p in pieces]).to(dtype).contiguous()
        back = [_ORDER[self.layout].index(d) for d in range(4)]
        joined = torch.stack(pieces).to(dtype).permute(back)
        return (joined.flatten(2) if self.layout in ("BSH", "SBH") else joined).contiguous()

    def split_statistics(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """softmax_max or softmax_sum by sequence, [N, S]."""
        if self.layout != "TND":
            return list(tensor[..., 0])
        if self.softmax_layout == "TND":
            return [tensor[a:b, :, 0].transpose(0, 1) for a, b in itertools.pairwise((0, *self.query_ends))]
        lengths = [b - a for a, b in itertools.pairwise((0, *self.query_ends))]
        flat = tensor.reshape(-1, STATISTICS_WIDTH)[:, 0].split([n * self.heads for n in lengths])
        return [piece.reshape(self.heads, -1) for piece in flat]

    def join_statistics(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        """The inverse of `split_statistics`, each value repeated eight times."""
        if self.layout != "TND":
            joined = torch.stack(pieces)
        elif self.softmax_layout == "TND":
            joined = torch.cat([p.transpose(0, 1) for p in pieces])
        else:
            joined = torch.cat([p.reshape(-1) for p in pieces]).reshape(-1, self.heads)
        return joined[..., None].expand(*joined.shape, STATISTICS_WIDTH).contiguous()

    def blocked(self, rows: int, columns: int, index: int, device: torch.device) -> torch.Tensor | None:
        """Where the queries of sequence `index` must not look, by sparse mode; None: anywhere is allowed."""
        if self.sparse_mode in (0, 1):  # MindSpeed 35da6ac passes 1 without a mask, ring_context_parallel.py:690
            return self._full_mask(rows, columns, index, device)
        offset = 0 if self.sparse_mode == 2 else columns - rows
        if self.sparse_mode == 4:
            return softmax_attention.band(rows, columns, offset, self.before, self.after, device)
        return softmax_attention.causal(rows, columns, offset, device)

    def _full_mask(self, rows, columns, index, device):
        if self.mask is None:
            return None
        mask = self.mask.bool()
        if mask.dim() == 4:
            mask = mask[index if mask.shape[0] > 1 else 0]
        if self.layout == "TND":
            mask = mask[..., :rows, :columns]
        check(
            tuple(mask.shape[-2:]) == (rows, columns),
            lambda: (
                f"npu_fusion_attention: sparse_mode {self.sparse_mode} needs the whole mask, [..., {rows}, {columns}], "
                f"but atten_mask has shape {tuple(self.mask.shape)}"
            ),
        )
        if self.sparse_mode == 0:
            mask = mask | softmax_attention.band(rows, columns, 0, self.before, self.after, device)
        return mask


def setting(a) -> Setting:
    """Checks the arguments as the real operators do and gathers those that forward and backward share."""
    _check_tensors(a)
    layout = a.input_layout.upper()
    softmax_layout = getattr(a, "softmax_layout", "")
    check(
        layout in LAYOUTS,
        f"The input_layout should be BSH/SBH/BNSD/BSND/TND(case-insensitive), but got {a.input_layout}",
    )
    check(softmax_layout in ("", "TND"), "only supported softmax_layout=TND")
    check(softmax_layout == "" or layout == "TND", "softmax_layout=TND only supported when input_layout_str=TND")
    _check_sparse_mode(layout, a.sparse_mode, a.atten_mask)
    for name in ("pse", "padding_mask", "prefix", "query_rope", "key_rope"):
        given = getattr(a, name, None)
        check(given is None, f"npu_fusion_attention: the emulator does not implement {name}", NotImplementedError)
    query_ends, key_ends = tuple(a.actual_seq_qlen or ()), tuple(a.actual_seq_kvlen or ())
    if layout == "TND":
        _check_lengths(a.query, a.key, a.head_num, query_ends, key_ends)
    return Setting(
        heads=a.head_num,
        layout=layout,
        mask=a.atten_mask,
        scale=a.scale if hasattr(a, "scale") else a.scale_value,
        keep_prob=a.keep_prob,
        before=a.pre_tockens if hasattr(a, "pre_tockens") else a.pre_tokens,
        after=a.next_tockens if hasattr(a, "next_tockens") else a.next_tokens,
        query_ends=query_ends,
        key_ends=key_ends,
        sparse_mode=a.sparse_mode,
        softmax_layout=softmax_layout,
    )


def _check_tensors(a):
    check(a.head_num > 0, f"head_num must > 0, but got {a.head_num}")
    for name in ("query", "key", "value"):
        dims = getattr(a, name).dim()
        check(
            dims in (3, 4), f"The shapes of the input {name} should be 3 or 4 dimensional, but got {dims}-dimensional"
        )
    check(0 < a.keep_prob <= 1, f"The keep_prob value must be in range of (0, 1], but got {a.keep_prob}")
    types = [a.query.dtype, a.key.dtype, a.value.dtype]
    check(
        len(set(types)) == 1,
        f"npu_fusion_attention: query, key and value must have one type, but are {types[0]}, {types[1]} and {types[2]}",
    )


def _check_sparse_mode(layout, sparse_mode, mask):
    if layout == "TND":
        check(
            0 <= sparse_mode <= 8 and sparse_mode != 5,
            f"The sparse_mode value must be in range of [0,5) or (5,8], but got {sparse_mode}",
        )
    else:
        check(0 <= sparse_mode <= 6, f"The sparse_mode value must be in range of [0,6], but got {sparse_mode}")
    check(
        sparse_mode <= 4,
        f"npu_fusion_attention: the emulator implements sparse_mode 0 to 4, not {sparse_mode}",
        NotImplementedError,
    )
    if mask is not None:
        check(
            mask.dtype in (torch.bool, torch.uint8),
            lambda: f"npu_fusion_attention: atten_mask must be bool or uint8, but is {mask.dtype}",
        )
    if sparse_mode >= 2:
        check_compressed_mask("npu_fusion_attention", sparse_mode, mask)


def check_compressed_mask(name: str, sparse_mode: int, mask: torch.Tensor | None) -> None:
    """Sparse modes 2 to 4 want one fixed mask, 2048 x 2048, True above the diagonal."""
    size = COMPRESSED_MASK
    found = "None" if mask is None else f"of shape {tuple(mask.shape)}"
    check(
        mask is not None and tuple(mask.shape[-2:]) == (size, size),
        f"{name}: sparse_mode {sparse_mode} needs the compressed atten_mask of {size}x{size}, but it is {found}. Pass "
        f"torch.triu(torch.ones({size}, {size}, dtype=torch.bool), diagonal=1).",
    )
    if mask.device.type == "meta":
        return
    corner = mask.reshape(-1, size, size)[0]
    triangular = not corner[0, 0] and corner[0, 1] and not corner[1, 0] and corner[0, -1] and not corner[-1, -1]
    check(
        bool(triangular),
        f"{name}: the compressed atten_mask of sparse_mode {sparse_mode} must be True (not to be looked at) exactly "
        f"above the diagonal: torch.triu(torch.ones({size}, {size}, dtype=torch.bool), diagonal=1).",
    )


def _check_lengths(query, key, head_num, query_ends, key_ends):
    check(
        bool(query_ends) and len(query_ends) == len(key_ends),
        "the size of actual_seq_qlen and actual_seq_kvlen must be the same and cannot be empty.",
    )
    for name, tensor, ends in (("qlen", query, query_ends), ("kvlen", key, key_ends)):
        check(
            all(a <= b for a, b in itertools.pairwise((0, *ends))) and ends[-1] == tensor.shape[0],
            lambda n=name, t=tensor, e=ends: (
                f"npu_fusion_attention: actual_seq_{n} must rise to the number of tokens, {t.shape[0]}, but is {[*e]}"
            ),
        )
    check(
        query.dim() == 3 and query.shape[1] == head_num,
        lambda: f"npu_fusion_attention: TND wants query [T, {head_num}, D], but it has shape {tuple(query.shape)}",
    )


def widths(s: Setting, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[int, int]:
    """Width of a head of query and key, and of value."""
    if s.layout not in ("BSH", "SBH"):
        return query.shape[-1], value.shape[-1]
    width = query.shape[2] // s.heads
    return width, value.shape[2] // max(key.shape[2] // max(width, 1), 1)
