"""Rollout attention and its cache: ATB's _npu_* operators.

Signatures: op-plugin 691bf15, ops/atb/*.cpp (namespace atb) and op_plugin_functions.yaml. What a mask means follows how
vllm-ascend 15b2e5c builds it (attention/attention_mask.py): any value but 0 blocks a position.

Shapes: query [tokens, heads, D] (or heads * D); cache [blocks, block size, KV heads, D]; block_table [sequences,
blocks] int32; lengths one a sequence, int32 on the host. Rows of `out` beyond the sequences are left as they were.
"""

import itertools
from collections.abc import Iterator

import torch

from . import softmax_attention
from .registry import check, operator, view

_COMPRESSED_PREFILL_MASK = 128


@operator(
    "_npu_flash_attention(Tensor query, Tensor key, Tensor value, Tensor mask, Tensor seq_len, float scale_value, "
    "int num_heads, int num_kv_heads, Tensor(a!) out) -> ()",
    meta=lambda *_: None,
    host=("seq_len",),
    namespace="atb",
)
def _npu_flash_attention(query, key, value, mask, seq_len, scale_value, num_heads, num_kv_heads, out):
    """Attention of whole prompts. mask [n, n], n at least the longest sequence."""
    name = "_npu_flash_attention"
    _check_lengths(name, query.shape[0], seq_len=seq_len)
    longest = int(seq_len.max()) if seq_len.numel() else 0
    _check_mask(name, mask, longest, longest)
    heads = Heads(query, out, num_heads)
    keys = key.reshape(key.shape[0], num_kv_heads, -1)
    values = value.reshape(value.shape[0], num_kv_heads, -1)
    for start, stop in _spans(seq_len.tolist()):
        length = stop - start
        blocked = mask[:length, :length] != 0
        heads.attend(start, stop, keys[start:stop], values[start:stop], scale_value, blocked)


@operator(
    "_npu_flash_attention_qlens(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor mask, "
    "Tensor seq_len, Tensor context_lens, int num_kv_heads, int num_heads, float scale_value, Tensor(a!) out) -> ()",
    meta=lambda *_: None,
    host=("seq_len", "context_lens"),
    namespace="atb",
)
def _npu_flash_attention_qlens(
    query,
    key_cache,
    value_cache,
    block_table,
    mask,
    seq_len,
    context_lens,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    """Attention of prompts whose first part is in the cache: causal, the mask is a compressed triangle of 128 x 128.

    seq_len       new tokens of each sequence; context_lens: its tokens in the cache, the new ones included.
    """
    name = "_npu_flash_attention_qlens"
    _check_lengths(name, query.shape[0], seq_len=seq_len, context_lens=context_lens)
    _check_mask(name, mask, _COMPRESSED_PREFILL_MASK, _COMPRESSED_PREFILL_MASK)
    heads = Heads(query, out, num_heads)
    for row, (start, stop), context in _sequences(seq_len, context_lens):
        keys, values = (from_cache(cache, block_table[row], context) for cache in (key_cache, value_cache))
        offset = context - (stop - start)
        blocked = softmax_attention.causal(stop - start, context, offset, query.device)
        heads.attend(start, stop, keys, values, scale_value, blocked)


@operator(
    "_npu_paged_attention_splitfuse(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, "
    "Tensor context_lens, Tensor mask, Tensor seq_len, int num_kv_heads, int num_heads, float scale_value, "
    "Tensor(a!) out) -> ()",
    meta=lambda *_: None,
    host=("seq_len", "context_lens"),
    namespace="atb",
)
def _npu_paged_attention_splitfuse(
    query,
    key_cache,
    value_cache,
    block_table,
    context_lens,
    mask,
    seq_len,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    """Attention of chunks of prompts and single tokens together; mask [tokens, longest context]: a row a token."""
    name = "_npu_paged_attention_splitfuse"
    _check_lengths(name, query.shape[0], seq_len=seq_len, context_lens=context_lens)
    _check_mask(name, mask, int(seq_len.sum()), int(context_lens.max()) if context_lens.numel() else 0)
    heads = Heads(query, out, num_heads)
    for row, (start, stop), context in _sequences(seq_len, context_lens):
        keys, values = (from_cache(cache, block_table[row], context) for cache in (key_cache, value_cache))
        heads.attend(start, stop, keys, values, scale_value, mask[start:stop, :context] != 0)


_PAGED_ARGUMENTS = (
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, int num_heads, float scale_value, "
    "Tensor block_table, Tensor context_lens, Tensor(a!) out"
)


@operator(
    f"_npu_paged_attention({_PAGED_ARGUMENTS}, *, Tensor? workspace=None) -> ()",
    meta=lambda *_: None,
    host=("context_lens",),
    namespace="atb",
)
def _npu_paged_attention(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    out,
    workspace,
):
    """Attention of one new token a sequence over its cache; a sequence of context 0 is padding of a captured graph."""
    _check_lengths("_npu_paged_attention", query.shape[0], context_lens=context_lens)
    count = context_lens.numel()
    check(
        count <= min(query.shape[0], block_table.shape[0]),
        lambda: (
            f"_npu_paged_attention: {count} context_lens, but query has {query.shape[0]} tokens and block_table "
            f"{block_table.shape[0]} rows"
        ),
    )
    live = context_lens.nonzero().flatten()
    if live.numel() == 0:
        return
    lengths = context_lens[live].long()
    heads = query.reshape(query.shape[0], num_heads, -1)[live]
    result = _one_token_each(heads, key_cache, value_cache, block_table[live], lengths, scale_value)
    view(out, (out.shape[0], num_heads, -1))[live] = result.to(out.dtype)


@operator(
    f"_npu_paged_attention_get_workspace({_PAGED_ARGUMENTS}) -> Tensor",
    meta=lambda *values: values[0].new_empty(1, dtype=torch.uint8),
    host=("context_lens",),
    namespace="atb",
    plans=True,
)
def _npu_paged_attention_get_workspace(
    query, key_cache, value_cache, num_kv_heads, num_heads, scale_value, block_table, context_lens, out
):
    """Scratch memory for _npu_paged_attention; the emulator needs none and gives one byte."""
    return query.new_zeros(1, dtype=torch.uint8)


@operator(
    "_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_indices) -> ()",
    meta=lambda *_: None,
    namespace="atb",
)
def _npu_reshape_and_cache(key, value, key_cache, value_cache, slot_indices):
    """Writes key and value [tokens, KV heads, D] into the cache.

    slot_indices [tokens] int32: block * block size + place in the block; -1: nowhere.
    """
    name = "_npu_reshape_and_cache"
    check(
        slot_indices.dtype == torch.int32,
        lambda: f"{name}: slot_indices must be int32, but is {slot_indices.dtype}; pass slot_indices.to(torch.int32)",
    )
    slots = slot_indices.long()
    count = key_cache.shape[0] * key_cache.shape[1]
    check(
        not slots.numel() or int(slots.max()) < count,
        lambda: f"{name}: slot {int(slots.max())} lies outside the cache of {count} slots",
    )
    used = slots >= 0
    for fresh, cache in ((key, key_cache), (value, value_cache)):
        check(cache.is_contiguous(), f"{name}: the caches are written in place and must be contiguous")
        view(cache, (count, *cache.shape[2:]))[slots[used]] = fresh[: slots.numel()][used].to(cache.dtype)


class Heads:
    """The queries by head, the place their results go to, and optionally one for the log-sum-exp."""

    def __init__(self, query, out, count, statistics=None):
        self.query = query.reshape(query.shape[0], count, -1)
        self.out = view(out, (out.shape[0], count, -1))
        self.statistics = statistics

    def attend(self, start, stop, keys, values, scale, blocked) -> None:
        """Attention of the tokens start..stop over keys and values [T, KV, D]."""
        query = self.query[start:stop].transpose(0, 1)
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)
        result, maximum, total = softmax_attention.forward(query, keys, values, scale, blocked)
        self.out[start:stop] = result.transpose(0, 1).to(self.out.dtype)
        if self.statistics is not None:
            self.statistics[start:stop, :, 0] = (maximum + total.log()).transpose(0, 1)


def from_cache(cache: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` entries of a sequence, [length, KV, D]."""
    size = cache.shape[1]
    return cache[blocks[: -(-length // size)].long()].flatten(0, 1)[:length]


def _one_token_each(query, key_cache, value_cache, tables, lengths, scale) -> torch.Tensor:
    """Attention of all sequences at once, padded to the longest: [sequences, heads, D], float32."""
    count, heads, _ = query.shape
    size, groups = key_cache.shape[1:3]
    places = torch.arange(int(lengths.max()), device=lengths.device)
    beyond = places[None] >= lengths[:, None]
    # a table's unused entries may name any block, and unused places may hold anything, NaN included
    slots = (tables[:, places // size].long() * size + places % size).masked_fill(beyond, 0)
    keys, values = (cache.flatten(0, 1)[slots].float().transpose(1, 2) for cache in (key_cache, value_cache))
    values = values.masked_fill(beyond[:, None, :, None], 0)
    grouped = query.float().reshape(count, groups, heads // groups, -1)
    scores = (grouped @ keys.transpose(2, 3) * scale).masked_fill(beyond[:, None, None], float("-inf"))
    return (scores.softmax(-1) @ values).reshape(count, heads, -1)


def _spans(lengths: list[int]) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(itertools.accumulate(lengths, initial=0))


def _sequences(seq_len: torch.Tensor, context_lens: torch.Tensor) -> Iterator[tuple[int, tuple[int, int], int]]:
    """Row, span of the new tokens and context length of every sequence that has both."""
    for row, (span, context) in enumerate(zip(_spans(seq_len.tolist()), context_lens.tolist(), strict=True)):
        if context and span[0] < span[1]:
            yield row, span, context


def _check_lengths(name: str, tokens: int, **lengths: torch.Tensor) -> None:
    for argument, tensor in lengths.items():
        check(
            tensor.dtype == torch.int32,
            lambda a=argument, t=tensor: f"{name}: {a} must be int32, but is {t.dtype}; pass {a}.to(torch.int32)",
        )
    queries = lengths.get("seq_len")
    if queries is not None:
        check(
            int(queries.sum()) <= tokens,
            lambda: f"{name}: seq_len adds up to {int(queries.sum())} tokens, but query has {tokens}",
        )


def _check_mask(name: str, mask: torch.Tensor, rows: int, columns: int) -> None:
    check(
        mask.dim() == 2 and mask.shape[0] >= rows and mask.shape[1] >= columns,
        lambda: f"{name}: mask must cover [{rows}, {columns}], but its shape is {tuple(mask.shape)}",
    )
