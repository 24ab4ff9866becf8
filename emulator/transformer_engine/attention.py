"""Causal attention over packed sequences by npu_fusion_attention; context parallelism by gathering keys and values.

Everything becomes one TND call: tokens of all sequences in one dimension, lengths beside them. Sequences of the sbhd
layout are packed first.

Context parallelism, zig-zag layout (as verl and Megatron cut their batches): a sequence is cut into 2 * cp chunks, rank
r holds chunks r and 2 * cp - 1 - r. Each rank gathers the keys and values of all ranks, and each of its two chunks
attends to the prefix of the sequence that ends with that chunk; a causal mask aligned to the lower right corner
(sparse_mode 3) then masks by global positions. The gradient of the gathering is Megatron's reduce-scatter.
"""

import functools
import itertools
import math
from typing import NamedTuple

import torch
import torch_npu
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.enums import AttnMaskType

# npu_fusion_attention's sparse_mode: everything; causal, aligned to the lower right corner of the score matrix.
FULL, CAUSAL_LOWER_RIGHT = 0, 3

# Whether a mask type is causal. What the padding types mask beside that lies behind the ends of packed sequences.
MASK_TYPES = {AttnMaskType.causal: True, AttnMaskType.no_mask: False}
PACKED_MASK_TYPES = {AttnMaskType.padding_causal: True, AttnMaskType.padding: False}


class Lengths(NamedTuple):
    """Pieces of one TND call: their lengths in queries and keys, and (cp > 1) which gathered keys they take in turn."""

    queries: list[int]
    keys: list[int]
    order: torch.Tensor | None = None


@functools.cache
def causal_mask(device: torch.device) -> torch.Tensor:
    """The operator's compressed causal mask, 2048 x 2048 whatever the lengths; True is masked."""
    return torch.triu(torch.ones(2048, 2048, dtype=torch.bool, device=device), diagonal=1)


@functools.lru_cache(maxsize=64)
def zigzag(boundaries: tuple[int, ...], cp: int, rank: int, causal: bool) -> Lengths:
    """Pieces of context-parallel rank `rank` for sequences with global `boundaries`, all lengths multiples of 2 * cp.

    `order` indexes the keys gathered over the ranks, [cp * local tokens]: rank 0's tokens first.
    """
    lengths, local = Lengths([], []), boundaries[-1] // cp
    order = []
    for start, stop in itertools.pairwise(boundaries):
        chunk, rest = divmod(stop - start, 2 * cp)
        if rest:
            raise ValueError(
                f"context parallelism over {cp} ranks needs sequences padded to multiples of {2 * cp}, "
                f"found one of {stop - start} tokens"
            )
        if not chunk:
            continue
        positions = torch.arange(chunk) + start // cp
        # chunk g < cp is the first half of what rank g holds of the sequence, its mirror image the second half
        chunks = [
            g * local + positions if g < cp else (2 * cp - 1 - g) * local + chunk + positions for g in range(2 * cp)
        ]
        prefixes = [rank + 1, 2 * cp - rank] if causal else [2 * cp]
        for prefix in prefixes:
            order += chunks[:prefix]
            lengths.queries.append(2 * chunk // len(prefixes))
            lengths.keys.append(prefix * chunk)
    return lengths._replace(order=torch.cat(order))


def differences(boundaries: list[int]) -> list[int]:
    """Lengths between successive boundaries."""
    return [stop - start for start, stop in itertools.pairwise(boundaries)]


class TEDotProductAttention(torch.nn.Module):
    """Core attention of a transformer layer; no parameters. Causal or full, grouped queries, sbhd or packed thd."""

    def __init__(
        self,
        config,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = "p2p",
    ):
        super().__init__()
        if config.window_size is not None or config.apply_query_key_layer_scaling:
            raise ValueError(
                "the emulated TEDotProductAttention has no sliding window and no query-key layer scaling; found "
                f"window_size={config.window_size}, "
                f"apply_query_key_layer_scaling={config.apply_query_key_layer_scaling}; leave both unset"
            )
        self.config = config
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale = softmax_scale or 1 / math.sqrt(k_channels or config.kv_channels)

    def forward(
        self, query, key, value, attention_mask, attn_mask_type=None, attention_bias=None, packed_seq_params=None
    ):
        """query [s, b, heads, d], key and value [s, b, groups, d] -> [s, b, heads * d].

        Packed: [t, heads, d] -> [t, heads * d]. attention_mask is ignored, as by TransformerEngine for these types of
        mask.
        """
        causal = self._is_causal(attn_mask_type or AttnMaskType.causal, packed_seq_params is not None)
        if attention_bias is not None:
            raise ValueError("the emulated TEDotProductAttention takes no attention_bias, found one; leave it None")
        if packed_seq_params is not None:
            return self._packed(query, key, value, packed_seq_params, causal).flatten(1)
        s, b = query.shape[:2]
        packed = (x.transpose(0, 1).flatten(0, 1) for x in (query, key, value))
        boundaries = [i * s * self.config.context_parallel_size for i in range(b + 1)]
        out = self._attend(*packed, boundaries, boundaries, causal)
        return out.unflatten(0, (b, s)).transpose(0, 1).flatten(2)

    @staticmethod
    def _is_causal(mask_type: AttnMaskType, packed: bool) -> bool:
        """False: every token attends to its whole sequence. Padding types are for packed sequences only."""
        allowed = MASK_TYPES | PACKED_MASK_TYPES if packed else MASK_TYPES
        if mask_type not in allowed:
            raise ValueError(
                f"the emulated TEDotProductAttention takes masks of type {', '.join(t.name for t in allowed)} "
                f"{'with' if packed else 'without'} packed sequences, found {mask_type.name}"
            )
        return allowed[mask_type]

    def _packed(self, query, key, value, packed, causal):
        def boundaries(padded, plain):
            return (plain if padded is None else padded).tolist()

        q = boundaries(packed.cu_seqlens_q_padded, packed.cu_seqlens_q)
        kv = boundaries(packed.cu_seqlens_kv_padded, packed.cu_seqlens_kv)
        used, used_keys = (ends[-1] // self.config.context_parallel_size for ends in (q, kv))
        out = self._attend(query[:used], key[:used_keys], value[:used_keys], q, kv, causal)
        # tokens behind the last sequence belong to none: zeros rather than whatever the memory holds
        return torch.cat((out, out.new_zeros(len(query) - used, *out.shape[1:]))) if used < len(query) else out

    def _attend(self, query, key, value, q_boundaries, kv_boundaries, causal):
        """query [t, heads, d], key [u, groups, d]; boundaries are global (before context parallelism)."""
        cp = self.config.context_parallel_size
        if cp == 1:
            lengths = Lengths(differences(q_boundaries), differences(kv_boundaries))
        else:
            if q_boundaries != kv_boundaries:
                raise ValueError("context parallelism needs the same boundaries for queries and keys, found two sets")
            rank = parallel_state.get_context_parallel_rank()
            lengths = zigzag(tuple(q_boundaries), cp, rank, causal)
            order, group = lengths.order.to(query.device), parallel_state.get_context_parallel_group()
            key, value = (
                gather_from_sequence_parallel_region(x, group=group).index_select(0, order) for x in (key, value)
            )
        return self.attend_pieces(query, key, value, lengths, causal)

    def attend_pieces(self, query, key, value, lengths: Lengths, causal: bool):
        """The operator's call: piece i of the queries attends to piece i of the keys; [t, heads, d]."""
        attention = functools.partial(
            torch_npu.npu_fusion_attention,
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            query.shape[1],
            "TND",
            atten_mask=causal_mask(query.device) if causal else None,
            scale=self.scale,
            actual_seq_qlen=list(itertools.accumulate(lengths.queries)),
            actual_seq_kvlen=list(itertools.accumulate(lengths.keys)),
            sparse_mode=CAUSAL_LOWER_RIGHT if causal else FULL,
        )
        if not self.training or not self.dropout:
            return attention()[0]
        with get_cuda_rng_tracker().fork():  # heads differ between tensor-parallel ranks, and so must their dropout
            return attention(keep_prob=1 - self.dropout)[0]
