"""Training attention: npu_fusion_attention and its gradient, version 2 of both.

Signatures: op-plugin 691bf15, op_plugin_functions.yaml; checks and result shapes: FlashAttentionKernelNpuOpApi.cpp
there. The statistics softmax_max and softmax_sum are float32 with a last dimension of 8 equal values: [B, N, S, 8],
and for TND [T, N, 8] in which each sequence's block of memory is laid out [N, s, 8] (softmax_layout="TND": [T, N, 8]
throughout).
"""

import itertools
import math

import npu_device
import torch

from . import softmax_attention
from .attention_setting import STATISTICS_WIDTH, Setting, setting, widths
from .registry import check, gradient, operator


def run_forward(a):
    """-> result in the query's layout, softmax_max, softmax_sum, softmax_out (empty), seed, offset, numels."""
    s = setting(a)
    width, value_width = widths(s, a.query, a.key, a.value)
    pieces = zip(
        s.split(a.query, width, s.query_ends),
        s.split(a.key, width, s.key_ends),
        s.split(a.value, value_width, s.key_ends),
        strict=True,
    )
    seed = _draw_seed() if s.keep_prob < 1 else 0
    drops = _dropouts(s, seed)
    results, maxima, totals = [], [], []
    for index, (q, k, v) in enumerate(pieces):
        blocked = s.blocked(q.shape[1], k.shape[1], index, q.device)
        result, maximum, total = softmax_attention.forward(q, k, v, s.scale, blocked, next(drops))
        results.append(result)
        maxima.append(maximum)
        totals.append(total)
    out = s.join(results, a.query.dtype)
    statistics = s.join_statistics(maxima), s.join_statistics(totals)
    return out, *statistics, a.query.new_empty(0), seed, 0, _score_count(s, a.query, a.key)


def run_backward(a):
    """-> gradients of query, key and value in their layouts."""
    s = setting(a)
    _check_saved(a)
    width, value_width = widths(s, a.query, a.key, a.value)
    pieces = zip(
        s.split(a.query, width, s.query_ends),
        s.split(a.key, width, s.key_ends),
        s.split(a.value, value_width, s.key_ends),
        s.split(a.dy, value_width, s.query_ends),
        s.split(a.attention_in, value_width, s.query_ends),
        s.split_statistics(a.softmax_max),
        s.split_statistics(a.softmax_sum),
        strict=True,
    )
    drops = _dropouts(s, a.seed)
    grads = []
    for index, (q, k, *rest) in enumerate(pieces):
        blocked = s.blocked(q.shape[1], k.shape[1], index, q.device)
        grads.append(softmax_attention.backward(q, k, *rest, s.scale, blocked, next(drops)))
    dq, dk, dv = zip(*grads, strict=True)
    return s.join(list(dq), a.query.dtype), s.join(list(dk), a.key.dtype), s.join(list(dv), a.value.dtype)


def _check_saved(a):
    missing = [n for n in ("softmax_max", "softmax_sum", "attention_in") if getattr(a, n) is None]
    check(not missing, f"npu_fusion_attention_grad needs the forward's {', '.join(missing)}, but found None")


def _draw_seed() -> int:
    """From the device's own generator, so that a forked random state gives other masks."""
    generator = npu_device.default_generator(npu_device.current_device())
    return int(torch.randint(2**31, (), device="npu", generator=generator))


def _dropouts(s: Setting, seed: int):
    """One dropout per sequence, the same in forward and backward: each draws from its own generator."""
    if s.keep_prob == 1:
        yield from itertools.repeat(None)

    def drop(weights, number):
        chance = torch.rand(weights.shape, generator=torch.Generator().manual_seed(number), device="cpu")
        return weights * (chance < s.keep_prob) / s.keep_prob

    for index in itertools.count():
        yield lambda weights, number=seed + index: drop(weights, number)


def _score_count(s: Setting, query, key) -> int:
    """How many scores there are, the size of a dropout mask."""
    if s.layout == "TND":
        lengths = [[b - a for a, b in itertools.pairwise((0, *ends))] for ends in (s.query_ends, s.key_ends)]
        return s.heads * sum(math.prod(pair) for pair in zip(*lengths, strict=True))
    batch = query.shape[1 if s.layout == "SBH" else 0]
    position = {"SBH": 0, "BNSD": 2}.get(s.layout, 1)
    return batch * s.heads * query.shape[position] * key.shape[position]


def meta_forward(a):
    """Result shapes of the forward operators."""
    s = setting(a)
    _, value_width = widths(s, a.query, a.key, a.value)
    shape = list(a.query.shape)
    shape[-1] = s.heads * value_width if s.layout in ("BSH", "SBH") else value_width
    if s.layout == "TND":
        statistics = (a.query.shape[0], s.heads, STATISTICS_WIDTH)
    else:
        batch = a.query.shape[1 if s.layout == "SBH" else 0]
        statistics = (batch, s.heads, a.query.shape[{"SBH": 0, "BNSD": 2}.get(s.layout, 1)], STATISTICS_WIDTH)
    maximum = a.query.new_empty(statistics, dtype=torch.float32)
    result, total, rest = a.query.new_empty(shape), torch.empty_like(maximum), a.query.new_empty(0)
    return result, maximum, total, rest, 0, 0, _score_count(s, a.query, a.key)


def meta_backward(a):
    """Result shapes of the gradient operators: those of query, key and value."""
    return torch.empty_like(a.query), torch.empty_like(a.key), torch.empty_like(a.value)


_INT_MAX = 2147483647
_QKV = "Tensor query, Tensor key, Tensor value, "
_MASKS = "Tensor? padding_mask=None, Tensor? atten_mask=None, "
_SAVED = "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, "
_RANDOM = "int seed=0, int offset=0, int numels=0, "
_LENGTHS = "int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
_V1_TOKENS = f"int pre_tockens={_INT_MAX}, int next_tockens={_INT_MAX}, int inner_precise=0, "
_V1_END = 'bool gen_mask_parallel=True, bool sync=False, str softmax_layout=""'
_V2_TOKENS = f"int pre_tokens={_INT_MAX}, int next_tokens={_INT_MAX}, int inner_precise=0, "
_V2_ROPE = "Tensor? query_rope=None, Tensor? key_rope=None, "
_V2_END = (
    "bool gen_mask_parallel=True, bool sync=False, int pse_type=1, int[]? q_start_idx=None, int[]? kv_start_idx=None"
)


@operator(
    f"npu_fusion_attention({_QKV}int head_num, str input_layout, Tensor? pse=None, {_MASKS}float scale=1., "
    f"float keep_prob=1., {_V1_TOKENS}{_LENGTHS}{_V1_END}) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    meta=meta_forward,
    gathered=True,
)
def npu_fusion_attention(a):
    """softmax(scale * query @ key^T) @ value."""
    return run_forward(a)


@operator(
    f"npu_fusion_attention_grad({_QKV}Tensor dy, int head_num, str input_layout, *, Tensor? pse=None, {_MASKS}{_SAVED}"
    f"float scale_value=1., float keep_prob=1., {_V1_TOKENS}{_RANDOM}{_LENGTHS}{_V1_END}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    meta=lambda a: (*meta_backward(a), None),
    phase="backward",
    gathered=True,
)
def npu_fusion_attention_grad(a):
    """-> gradients of query, key, value, pse (None)."""
    return *run_backward(a), None


@operator(
    f"npu_fusion_attention_v2({_QKV}int head_num, str input_layout, *, Tensor? pse=None, {_MASKS}{_V2_ROPE}"
    f"float scale=1., float keep_prob=1., {_V2_TOKENS}{_LENGTHS}{_V2_END}) "
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    meta=meta_forward,
    gathered=True,
)
def npu_fusion_attention_v2(a):
    """As npu_fusion_attention; the emulator ignores what belongs to pse (pse_type, q_start_idx, kv_start_idx)."""
    return run_forward(a)


@operator(
    f"npu_fusion_attention_grad_v2({_QKV}Tensor dy, int head_num, str input_layout, *, Tensor? pse=None, {_MASKS}"
    f"{_SAVED}{_V2_ROPE}float scale_value=1., float keep_prob=1., {_V2_TOKENS}{_RANDOM}{_LENGTHS}{_V2_END}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    meta=lambda a: (*meta_backward(a), None, None, None),
    phase="backward",
    gathered=True,
)
def npu_fusion_attention_grad_v2(a):
    """-> gradients of query, key, value, pse, query_rope, key_rope (the last three None)."""
    return *run_backward(a), None, None, None


_PASSED_ON = ("keep_prob", "inner_precise", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode")


def _differentiate(name: str, gradient_of, also: tuple[str, ...]) -> None:
    """Connects a forward operator with its gradient; `also`: arguments of both besides those in _PASSED_ON."""

    @gradient(
        name,
        saves=("query", "key", "value", "atten_mask"),
        saves_outputs=(0, 1, 2),
        inputs=("query", "key", "value"),
    )
    def backward(saved, grad, *_):
        dq, dk, dv, *_ = gradient_of(
            saved.query,
            saved.key,
            saved.value,
            grad,
            saved.head_num,
            saved.input_layout,
            atten_mask=saved.atten_mask,
            attention_in=saved.outputs[0],
            softmax_max=saved.outputs[1],
            softmax_sum=saved.outputs[2],
            scale_value=saved.scale,
            seed=saved.results[4],
            **{argument: getattr(saved, argument) for argument in _PASSED_ON + also},
        )
        return {"query": dq, "key": dk, "value": dv}


_differentiate(
    "npu_fusion_attention",
    torch.ops.npu.npu_fusion_attention_grad,
    ("pre_tockens", "next_tockens", "softmax_layout"),
)
_differentiate("npu_fusion_attention_v2", torch.ops.npu.npu_fusion_attention_grad_v2, ("pre_tokens", "next_tokens"))
