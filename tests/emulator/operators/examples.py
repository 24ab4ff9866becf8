"""One good call of every registered operator, for the tests that hold for all of them."""

import dataclasses

import torch
import torch_npu  # noqa: F401
import vllm_ascend_C  # noqa: F401

from tests.emulator.operators.comparison import seeded


@dataclasses.dataclass
class Example:
    """A call with CPU tensors. name: "namespace::name" or "namespace::name.overload"; host: arguments left there."""

    name: str
    args: tuple = ()
    kwargs: dict = dataclasses.field(default_factory=dict)
    host: tuple = ()
    traceable: bool = True

    @property
    def overload(self):
        namespace, _, name = self.name.partition("::")
        name, _, overload = name.partition(".")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")

    def named(self):
        """Arguments by name."""
        names = [a.name for a in self.overload._schema.arguments]
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    def call(self, move, change=()):
        """Calls the operator with every tensor that belongs on the device moved; `change` is taken as it is."""
        schema = self.overload._schema.arguments
        named = self.named() | dict(change)
        named = {k: v if k in self.host or k in change else _map(move, v) for k, v in named.items()}
        positional = []
        for argument in schema:
            if argument.kwarg_only or argument.name not in named:
                break
            positional.append(named.pop(argument.name))
        return self.overload(*positional, **named)


def _map(move, value):
    if isinstance(value, torch.Tensor):
        return move(value)
    return [_map(move, v) for v in value] if isinstance(value, (list, tuple)) else value


def examples() -> list[Example]:
    """A fresh list: calls write into their arguments."""
    return [*_norm_activation(), *_rotary(), *_attention(), *_paged(), *_moe(), *_products(), *_rest()]


def _randn(*shape):
    return torch.randn(shape, generator=seeded(shape))


def _norm_activation():
    x, gamma, rstd = _randn(3, 8), _randn(8), _randn(3, 1)
    mask = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    return [
        Example("npu::npu_rms_norm", (x, gamma)),
        Example("npu::npu_rms_norm_backward", (x, x, gamma, rstd)),
        Example("npu::npu_add_rms_norm", (x, x, gamma)),
        Example("npu::npu_swiglu", (x,)),
        Example("npu::npu_swiglu_backward", (_randn(3, 4), x)),
        Example("npu::npu_fast_gelu", (x,)),
        Example("npu::npu_fast_gelu_backward", (x, x)),
        Example("npu::npu_scaled_masked_softmax", (_randn(1, 2, 4, 4), mask)),
        Example("npu::npu_scaled_masked_softmax_backward", (_randn(1, 2, 4, 4), _randn(1, 2, 4, 4), mask, 1.0, False)),
    ]


def _rotary():
    x, angle = _randn(2, 3, 1, 8), _randn(2, 1, 1, 8)
    return [
        Example("npu::npu_rotary_mul", (x, angle, angle)),
        Example("npu::npu_rotary_mul_backward", (x, x, angle, angle)),
        Example("npu::npu_apply_rotary_pos_emb", (x, x.clone(), angle, angle)),
        Example(
            "atb::_npu_rotary_embedding",
            (torch.tensor([0, 3]), _randn(2, 16), _randn(2, 8), 8, _randn(4, 8), True),
        ),
        Example("mindspeed_extension::npu_rotary_position_embedding", (x, angle, angle)),
        Example("mindspeed_extension::npu_rotary_position_embedding_grad", (x, angle, angle, x, 0)),
    ]


def _attention():
    query, key = _randn(2, 3, 16), _randn(2, 5, 8)
    statistics = {"softmax_max": _randn(2, 2, 3, 8), "softmax_sum": _randn(2, 2, 3, 8).exp(), "attention_in": query}
    packed, maximum = _randn(5, 2, 8), _randn(5, 2, 8)
    lengths = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}
    both = [Example(f"npu::npu_fusion_attention{suffix}", (query, key, key, 2, "BSH")) for suffix in ("", "_v2")] + [
        Example(f"npu::npu_fusion_attention_grad{suffix}", (query, key, key, query, 2, "BSH"), statistics)
        for suffix in ("", "_v2")
    ]
    return [
        *both,
        Example("npu::npu_fusion_attention", (packed, packed, packed, 2, "TND"), lengths),
        Example(
            "mindspeed_extension::npu_ring_attention_update",
            (packed, maximum, maximum.exp(), packed, maximum, maximum.exp(), torch.tensor([0, 2, 5]), "TND"),
        ),
    ]


def _paged():
    query, fresh, cache = _randn(3, 4, 8), _randn(3, 2, 8), _randn(4, 4, 2, 8)
    table, new = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), torch.tensor([2, 1], dtype=torch.int32)
    contexts, out = torch.tensor([5, 3], dtype=torch.int32), torch.zeros(3, 4, 8)
    ahead = {"block_table": table, "seq_len": new, "context_lens": contexts, "num_kv_heads": 2, "num_heads": 4}
    ahead |= {"query": query, "key_cache": cache, "value_cache": cache, "scale_value": 0.5, "out": out}
    one = {k: v for k, v in ahead.items() if k != "seq_len"}
    lengths = ("seq_len", "context_lens")
    return [
        Example(
            "atb::_npu_flash_attention",
            (query, fresh, fresh, torch.zeros(2, 2), new, 0.5, 4, 2, out),
            host=("seq_len",),
        ),
        Example("atb::_npu_flash_attention_qlens", (), ahead | {"mask": torch.zeros(128, 128)}, lengths),
        Example("atb::_npu_paged_attention_splitfuse", (), ahead | {"mask": torch.zeros(3, 5)}, lengths),
        Example("atb::_npu_paged_attention", (), one, ("context_lens",)),
        Example("atb::_npu_paged_attention_get_workspace", (), one, ("context_lens",), traceable=False),
        Example(
            "atb::_npu_reshape_and_cache",
            (fresh, fresh, cache.clone(), cache.clone(), torch.tensor([3, -1, 9], dtype=torch.int32)),
        ),
        Example(
            "npu::npu_fused_infer_attention_score",
            (query, fresh, fresh),
            {
                "actual_seq_lengths": [1, 3],
                "actual_seq_lengths_kv": [1, 3],
                "num_heads": 4,
                "num_key_value_heads": 2,
                "input_layout": "TND",
                "softmax_lse_flag": True,
            },
        ),
    ]


def _moe():
    tokens, idx, probs = _randn(3, 4), torch.tensor([[0, 2], [1, 2], [2, 3]], dtype=torch.int32), _randn(3, 2)
    rows, where = _randn(6, 4), torch.tensor([0, 2, 1, 3, 4, 5], dtype=torch.int32)
    routing = torch.zeros(3, 4, dtype=torch.bool).scatter_(1, idx.long(), True)
    by_map = {"probs": _randn(3, 4), "routing_map": routing}
    return [
        Example("npu::npu_moe_gating_top_k_softmax", (_randn(3, 4), None, 2)),
        Example("npu::npu_moe_gating_top_k", (_randn(3, 4), 2)),
        Example(
            "npu::npu_moe_init_routing_v2",
            (tokens, idx),
            {"expert_num": 4, "active_expert_range": [1, 3], "quant_mode": -1, "expert_tokens_num_type": 1},
        ),
        Example(
            "npu::npu_moe_init_routing", (tokens, torch.tensor([[0, 3], [1, 4], [2, 5]], dtype=torch.int32), idx, 2)
        ),
        Example("npu::npu_moe_compute_expert_tokens", (torch.tensor([0, 0, 2], dtype=torch.int32), 4)),
        Example("npu::npu_moe_finalize_routing", (rows, None, tokens, _randn(4, 4), probs, where, idx)),
        Example("npu::npu_moe_token_permute", (tokens, idx)),
        Example("npu::npu_moe_token_permute_grad", (tokens, rows, idx, where)),
        Example("npu::npu_moe_token_unpermute", (rows, where, probs)),
        Example("npu::npu_moe_token_unpermute_grad", (rows, tokens, where, probs)),
        Example(
            "npu::npu_moe_token_permute_with_routing_map",
            (tokens, routing),
            {"probs": _randn(3, 4), "num_out_tokens": 6},
        ),
        Example("npu::npu_moe_token_permute_with_routing_map_grad", (rows, _randn(6), where, routing, 4, 3, False)),
        Example("npu::_npu_moe_token_unpermute_with_routing_map", (rows, where, [3, 4]), by_map),
        Example(
            "npu::npu_moe_token_unpermute_with_routing_map_grad",
            (tokens, where, where, routing, rows, _randn(3, 4), False, [3, 4]),
        ),
    ]


def _products():
    x, weight, ends = _randn(4, 8), _randn(2, 8, 3), torch.tensor([1, 4])
    grad = _randn(4, 3)
    plain = {"split_item": 2, "group_type": 0, "group_list_type": 0}
    return [
        Example("npu::npu_grouped_matmul", ([x], [weight]), plain | {"group_list": ends}),
        Example("npu::npu_grouped_matmul.List", ([x], [weight]), plain | {"group_list": [1, 4]}),
        Example("mindspeed_extension::npu_gmm", ([x], [weight], [], ends, 0, 0)),
        Example("mindspeed_extension::npu_gmm.List", ([x], [weight], [], [1, 4], 0, 0)),
        Example("mindspeed_extension::npu_gmm_backward", ([grad], [x], [weight], ends, 0)),
        Example("mindspeed_extension::npu_gmm_backward.List", ([grad], [x], [weight], [1, 4], 0)),
        Example("mindspeed_extension::npu_gmm_backward_fusion", ([grad], [weight], ends, 0)),
        Example("mindspeed_extension::npu_gmm_backward_fusion.List", ([grad], [weight], [1, 4], 0)),
        Example("mindspeed_extension::npu_groupmatmul_add_fp32", (x, grad, ends, torch.zeros(2, 8, 3))),
        Example("mindspeed_extension::npu_matmul_add_fp32", (x, grad, torch.zeros(8, 3))),
        Example("atb::_npu_matmul_add_fp32", (x, grad, torch.zeros(8, 3))),
    ]


def _rest():
    moments = [_randn(3), torch.zeros(3), torch.zeros(3)]
    return [
        Example(
            "mindspeed_extension::npu_apply_fused_adamw_v2",
            (_randn(3), *moments, None, torch.tensor([1]), 1e-3, 0.9, 0.99, 0.0, 1e-8, False, False),
        ),
        Example("npu::npu_top_k_top_p", (_randn(2, 5), torch.tensor([0.5, 0.9]), torch.tensor([2, 3]))),
        Example("npu::npu_format_cast", (_randn(2, 4), 29)),
        Example("npu::npu_format_cast.Tensor", (_randn(2, 4), _randn(2, 4))),
        Example("npu::npu_format_cast_", (_randn(2, 4), _randn(2, 4))),
        Example("npu::npu_format_cast_.acl_format", (_randn(2, 4), 29)),
        Example("npu::get_npu_format", (_randn(2, 4),)),
        *_vllm_ascend(),
        Example("npu::npu_prefetch", (_randn(4, 4), _randn(4, 4), 64)),
    ]


def _vllm_ascend():
    x, rank, down, up = _randn(3, 4), _randn(3, 2), _randn(2, 2, 4), _randn(2, 4, 2)
    adapters, by_sequence, lengths = torch.tensor([0, -1, 1]), torch.tensor([1, -1]), torch.tensor([1, 2])
    return [
        Example("_C_ascend::bgmv_shrink", (x, down, adapters, rank, 0.5)),
        Example("_C_ascend::bgmv_expand", (rank, up, adapters, x, 0, 4)),
        Example("_C_ascend::sgmv_shrink", (x, down, by_sequence, lengths, rank, 0.5)),
        Example("_C_ascend::sgmv_expand", (rank, up, by_sequence, lengths, x, 0, 4)),
        Example(
            "_C_ascend::rotary_embedding", (torch.tensor([0, 3]), _randn(2, 16), _randn(2, 8), 8, _randn(4, 8), True)
        ),
        Example("_C_ascend::get_masked_input_and_mask", (torch.tensor([0, 9, 33]), 8, 16, 0, 32, 36)),
    ]
