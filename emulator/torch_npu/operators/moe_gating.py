"""Which experts a token goes to: npu_moe_gating_top_k_softmax and npu_moe_gating_top_k.

Signatures and result types: op-plugin 691bf15, op_plugin_functions.yaml and _meta_registrations.py.
"""

import torch

from .registry import check, operator, unwritten


def _gating_meta(x, *_):
    shape = (*x.shape[:-1], _[-1])
    expert = x.new_empty(shape, dtype=torch.int32)
    return x.new_empty(shape), expert, torch.empty_like(expert)


@operator(
    "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)",
    meta=_gating_meta,
)
def npu_moe_gating_top_k_softmax(x, finished, k):
    """softmax over the experts of x [.., experts], the k largest: weights, experts (int32), row numbers (int32).

    finished  rows that need no expert: they get the number of experts. Row numbers count column by column.
    """
    name = "npu_moe_gating_top_k_softmax"
    check(x.dim() in (2, 3), lambda: f"{name}: x must have 2 or 3 dimensions, but has {x.dim()}")
    check(0 < k <= x.shape[-1], lambda: f"{name}: k must be between 1 and the number of experts, but is {k}")
    weights, experts = x.float().softmax(-1).topk(k, -1)
    experts = experts.to(torch.int32)
    if finished is not None:
        experts = experts.masked_fill(finished.bool()[..., None], x.shape[-1])
    rows = experts[..., 0].numel()
    numbers = torch.arange(rows * k, dtype=torch.int32, device=x.device).reshape(k, rows).t()
    return weights.to(x.dtype), experts, numbers.reshape(experts.shape).contiguous()


def _gating_top_k_meta(a):
    rows, experts = a.x.shape
    chosen = a.x.new_empty((rows, a.k))
    return chosen, torch.empty_like(chosen, dtype=torch.int32), a.x.new_empty((rows, experts), dtype=torch.float32)


@operator(
    "npu_moe_gating_top_k(Tensor x, int k, *, Tensor? bias=None, int k_group=1, int group_count=1, "
    "int group_select_mode=0, int renorm=0, int norm_type=0, bool out_flag=False, float routed_scaling_factor=1.0, "
    "float eps=1e-20) -> (Tensor, Tensor, Tensor)",
    meta=_gating_top_k_meta,
    gathered=True,
)
def npu_moe_gating_top_k(a):
    """The k best experts of each row: weights, experts (int32), all normalised scores (float32, with out_flag).

    norm_type           0 softmax, 1 sigmoid; a sigmoid's weights are divided by their sum.
    bias                added for the choice only, not to the weights.
    group_count, k_group  choose among the experts of the k_group best of group_count groups; a group counts as its
                        largest score (group_select_mode 0) or the sum of its two largest (1).
    """
    name = "npu_moe_gating_top_k"
    check(a.x.dim() == 2, lambda: f"{name}: the x shape support only 2d, but it has {a.x.dim()} dimensions")
    check(a.norm_type in (0, 1), f"{name}: norm_type must be 0 (softmax) or 1 (sigmoid), but is {a.norm_type}")
    check(a.renorm == 0, f"{name}: the emulator implements renorm 0, not {a.renorm}", NotImplementedError)
    check(
        a.x.shape[1] % a.group_count == 0,
        lambda: f"{name}: {a.x.shape[1]} experts cannot be cut into group_count {a.group_count} groups",
    )
    scores = a.x.float().sigmoid() if a.norm_type else a.x.float().softmax(-1)
    preference = scores if a.bias is None else scores + a.bias.float()
    preference = _keep_groups(preference, a.group_count, a.k_group, a.group_select_mode)
    experts = preference.topk(a.k, -1).indices
    weights = scores.gather(1, experts)
    if a.norm_type:
        weights = weights / (weights.sum(-1, keepdim=True) + a.eps)
    all_scores = scores if a.out_flag else unwritten(a.x, a.x.shape, torch.float32)
    return (weights * a.routed_scaling_factor).to(a.x.dtype), experts.to(torch.int32), all_scores


def _keep_groups(preference, group_count, k_group, group_select_mode):
    if group_count == k_group:
        return preference
    groups = preference.unflatten(1, (group_count, -1))
    worth = groups.amax(-1) if group_select_mode == 0 else groups.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(worth, dtype=torch.bool).scatter_(1, worth.topk(k_group, -1).indices, True)
    return groups.masked_fill(~kept[..., None], float("-inf")).flatten(1)
