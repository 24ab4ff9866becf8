"""npu_fused_infer_attention_score in layout TND, which vllm-ascend uses for chunked prefill from CANN 8.3 on.

Signature: op-plugin 691bf15, op_plugin_functions.yaml; use: vllm-ascend 15b2e5c, attention/attention_v1.py.
"""

import itertools
from collections.abc import Iterator

import torch

from . import softmax_attention
from .attention_setting import check_compressed_mask
from .paged_attention import Heads, from_cache
from .registry import check, operator, unwritten

_QUANTISATION = [
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "key_antiquant_scale",
    "key_antiquant_offset",
    "value_antiquant_scale",
    "value_antiquant_offset",
]
_FUSED_UNUSED = ["query_padding_size", "kv_padding_size", "key_shared_prefix", "value_shared_prefix"]
_FUSED_ROPE = ["query_rope", "key_rope", "key_rope_antiquant_scale"]
_INT_MAX = 2147483647


def _optional(names: list[str]) -> str:
    return ", ".join(f"Tensor? {n}=None" for n in names)


def _fused_meta(a):
    shape = (*a.query.shape[:2], 1) if a.softmax_lse_flag else (0,)
    return torch.empty_like(a.query), a.query.new_empty(shape, dtype=torch.float32)


@operator(
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, "
    "Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, "
    f"{_optional(_QUANTISATION)}, Tensor? block_table=None, {_optional(_FUSED_UNUSED)}, "
    f"SymInt[]? actual_shared_prefix_len=None, {_optional(_FUSED_ROPE)}, int num_heads=1, float scale=1.0, "
    f'int pre_tokens={_INT_MAX}, int next_tokens={_INT_MAX}, str input_layout="BSH", int num_key_value_heads=0, '
    "int sparse_mode=0, int inner_precise=0, int block_size=0, int antiquant_mode=0, int key_antiquant_mode=0, "
    "int value_antiquant_mode=0, bool softmax_lse_flag=False) -> (Tensor, Tensor)",
    meta=_fused_meta,
    gathered=True,
)
def npu_fused_infer_attention_score(a):
    """Attention of packed sequences, layout TND: -> result, log-sum-exp [T, N, 1] (empty unless softmax_lse_flag).

    actual_seq_lengths     ends of the queries' sequences, cumulative.
    actual_seq_lengths_kv  with block_table: context lengths; without: ends of the keys' sequences.
    """
    name = "npu_fused_infer_attention_score"
    _check_fused(name, a)
    ends = [int(e) for e in a.actual_seq_lengths]
    contexts = [int(e) for e in a.actual_seq_lengths_kv]
    check(
        bool(ends) and ends[-1] == a.query.shape[0] and len(ends) == len(contexts),
        lambda: (
            f"{name}: layout TND wants actual_seq_lengths to end at the number of query tokens, {a.query.shape[0]}, "
            f"and one actual_seq_lengths_kv each, but found {ends} and {contexts}"
        ),
    )
    out = unwritten(a.query, a.query.shape)
    statistics = unwritten(a.query, (*a.query.shape[:2], 1) if a.softmax_lse_flag else (0,), torch.float32)
    heads = Heads(a.query, out, a.num_heads, statistics if a.softmax_lse_flag else None)
    for (start, stop), (keys, values) in zip(itertools.pairwise((0, *ends)), _fused_keys(a, contexts), strict=True):
        blocked = _fused_blocked(a, stop - start, keys.shape[0])
        heads.attend(start, stop, keys, values, a.scale, blocked)
    return out, statistics


def _check_fused(name, a):
    check(
        a.input_layout == "TND",
        f"{name}: the emulator implements input_layout TND, not {a.input_layout}",
        NotImplementedError,
    )
    for argument in ["pse_shift", *_QUANTISATION, *_FUSED_UNUSED, "actual_shared_prefix_len", *_FUSED_ROPE]:
        check(getattr(a, argument) is None, f"{name}: the emulator does not implement {argument}", NotImplementedError)
    check(
        a.sparse_mode in (0, 3),
        f"{name}: the emulator implements sparse_mode 0 and 3, not {a.sparse_mode}",
        NotImplementedError,
    )
    check(
        a.actual_seq_lengths is not None and a.actual_seq_lengths_kv is not None,
        f"{name}: layout TND needs actual_seq_lengths and actual_seq_lengths_kv",
    )
    if a.sparse_mode == 3:
        check_compressed_mask(name, 3, a.atten_mask)


def _fused_keys(a, contexts: list[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each sequence, [T, KV, D]."""
    groups = a.num_key_value_heads or a.num_heads
    if a.block_table is None:
        for start, stop in itertools.pairwise((0, *contexts)):
            yield a.key[start:stop], a.value[start:stop]
        return
    caches = [c.reshape(c.shape[0], a.block_size, groups, -1) for c in (a.key, a.value)]
    for row, context in enumerate(contexts):
        keys, values = (from_cache(cache, a.block_table[row], context) for cache in caches)
        yield keys, values


def _fused_blocked(a, rows: int, columns: int) -> torch.Tensor | None:
    if a.sparse_mode == 3:
        return softmax_attention.causal(rows, columns, columns - rows, a.query.device)
    if a.atten_mask is None:
        return None
    return a.atten_mask.reshape(a.atten_mask.shape[-2:])[:rows, :columns] != 0
