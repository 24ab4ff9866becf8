"""A rank's tokens brought into the order of its experts, and their results back: what vllm-ascend's dispatchers call.

Signatures and result types: op-plugin 691bf15, op_plugin_functions.yaml and ops/opapi/Moe*.cpp. Use: vllm-ascend
15b2e5c, ops/moe/token_dispatcher.py (npu_moe_init_routing_v2) and 1de16ea, ops/fused_moe.py (the other three).
"""

import torch

from .registry import check, operator, unwritten


def _init_routing_meta(a):
    count = a.expert_idx.numel()
    low, high = a.active_expert_range
    index = a.expert_idx.new_empty((count,), dtype=torch.int32)
    counts = a.expert_idx.new_empty((high - low,), dtype=torch.int64)
    return a.x.new_empty((count, a.x.shape[1])), index, counts, a.x.new_empty((count,), dtype=torch.float32)


@operator(
    "npu_moe_init_routing_v2(Tensor x, Tensor expert_idx, *, Tensor? scale=None, Tensor? offset=None, "
    "int active_num=-1, int expert_capacity=-1, int expert_num=-1, int drop_pad_mode=0, int expert_tokens_num_type=0, "
    "bool expert_tokens_num_flag=False, int quant_mode=0, int[2] active_expert_range=[], int row_idx_type=0) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    meta=_init_routing_meta,
    gathered=True,
)
def npu_moe_init_routing_v2(a):
    """Copies each token [T, H] once for every one of its k experts in active_expert_range, sorted by expert.

    -> rows [T * k, H], of which only those of active experts are written; for every (token, choice) the row it went
    to, -1 for none (row_idx_type 1: for every row the (token, choice) it came from); tokens of each active expert,
    summed up (expert_tokens_num_type 0) or not (1), int64; scales (unused without quantisation).
    """
    _check_init_routing(a)
    low, high = a.active_expert_range
    choices = a.expert_idx.reshape(-1).long()
    count, width = choices.numel(), a.expert_idx.shape[1]
    active = (choices >= low) & (choices < high)
    order = choices.masked_fill(~active, a.expert_num).argsort(stable=True)[: int(active.sum())]
    rows = unwritten(a.x, (count, a.x.shape[1]))
    rows[: order.numel()] = a.x[order // width]
    index = torch.full_like(choices, -1)
    if a.row_idx_type == 0:
        index[order] = torch.arange(order.numel(), device=order.device)
    else:
        index[: order.numel()] = order
    counts = torch.bincount(choices[active] - low, minlength=high - low)
    if a.expert_tokens_num_type == 0:
        counts = counts.cumsum(0)
    return rows, index.to(torch.int32), counts, unwritten(a.x, (count,), torch.float32)


def _check_init_routing(a):
    name = "npu_moe_init_routing_v2"
    check(a.x.dim() == 2, lambda: f"{name}: the x shape support only 2d, but it has {a.x.dim()} dimensions")
    check(
        a.expert_idx.dim() == 2 and a.x.shape[0] == a.expert_idx.shape[0],
        lambda: (
            f"{name}: expert_idx must be [{a.x.shape[0]}, k], one row for each row of x, but has shape "
            f"{tuple(a.expert_idx.shape)}"
        ),
    )
    check(
        len(a.active_expert_range) == 2 and 0 <= a.active_expert_range[0] < a.active_expert_range[1] <= 10240,
        lambda: f"{name}: active_expert_range must be [low, high) within [0, 10240], but is {a.active_expert_range}",
    )
    check(
        a.quant_mode == -1 and a.scale is None and a.offset is None,
        f"{name}: the emulator implements quant_mode -1 (none) without scale and offset, not {a.quant_mode}",
        NotImplementedError,
    )
    check(
        a.drop_pad_mode == 0 and a.expert_tokens_num_type in (0, 1),
        f"{name}: the emulator implements drop_pad_mode 0 and expert_tokens_num_type 0 and 1, not {a.drop_pad_mode} "
        f"and {a.expert_tokens_num_type}",
        NotImplementedError,
    )
    check(
        a.active_num in (-1, 0) or a.active_num >= a.expert_idx.numel(),
        f"{name}: the emulator implements an active_num that drops no token, not {a.active_num}",
        NotImplementedError,
    )


def _first_routing_meta(x, row_idx, expert_idx, active_num):
    rows = min(x.shape[0], active_num) * row_idx.shape[1]
    index = row_idx.new_empty((expert_idx.numel(),))
    return x.new_empty((rows, x.shape[1])), index, torch.empty_like(index)


@operator(
    "npu_moe_init_routing(Tensor x, Tensor row_idx, Tensor expert_idx, int active_num) -> (Tensor, Tensor, Tensor)",
    meta=_first_routing_meta,
)
def npu_moe_init_routing(x, row_idx, expert_idx, active_num):
    """Copies tokens [T, H] once for each of their k experts, sorted by expert.

    row_idx [T, k] int32: number of each (token, choice); they count column by column, token + choice * T.
    -> rows [min(T, active_num) * k, H]; for every number the row it went to; the rows' experts (both int32).
    """
    check(
        row_idx.shape == expert_idx.shape and row_idx.dim() == 2 and row_idx.shape[0] == x.shape[0],
        lambda: (
            f"npu_moe_init_routing: row_idx and expert_idx must be [{x.shape[0]}, k], but are {tuple(row_idx.shape)} "
            f"and {tuple(expert_idx.shape)}"
        ),
    )
    experts, order = expert_idx.reshape(-1).sort(stable=True)
    numbers = row_idx.reshape(-1)[order].long()
    where = torch.empty_like(numbers)
    where[numbers] = torch.arange(len(numbers), device=numbers.device)
    kept = min(x.shape[0], active_num) * expert_idx.shape[1]
    return x[numbers[:kept] % max(x.shape[0], 1)], where.to(torch.int32), experts.to(torch.int32)


@operator(
    "npu_moe_compute_expert_tokens(Tensor sorted_expert_for_source_row, int num_expert) -> Tensor",
    meta=lambda experts, count: experts.new_empty((count,), dtype=torch.int32),
)
def npu_moe_compute_expert_tokens(sorted_expert_for_source_row, num_expert):
    """Ends of the experts' groups in a sorted list of experts: int32 [num_expert]."""
    experts = torch.arange(num_expert, device=sorted_expert_for_source_row.device, dtype=torch.int32)
    return torch.searchsorted(sorted_expert_for_source_row.to(torch.int32), experts, right=True).to(torch.int32)


def _finalize_meta(a):
    if a.scales is None:
        return torch.empty_like(a.expanded_permuted_rows)
    return a.expanded_permuted_rows.new_empty((a.scales.shape[0], a.expanded_permuted_rows.shape[1]))


@operator(
    "npu_moe_finalize_routing(Tensor expanded_permuted_rows, Tensor? skip1, Tensor? skip2, Tensor? bias, "
    "Tensor? scales, Tensor expanded_src_to_dst_row, Tensor? export_for_source_row, int? drop_pad_mode=0) -> Tensor",
    meta=_finalize_meta,
    gathered=True,
)
def npu_moe_finalize_routing(a):
    """Adds the rows of each token up, weighted by scales [T, k], on top of skip1 and skip2 [T, H].

    expanded_src_to_dst_row: for every (token, choice), counted column by column, its row; -1: none.
    bias [experts, H] joins each row; export_for_source_row [T, k] says whose.
    """
    name = "npu_moe_finalize_routing"
    check(
        a.drop_pad_mode == 0,
        f"{name}: the emulator implements drop_pad_mode 0, not {a.drop_pad_mode}",
        NotImplementedError,
    )
    check(
        a.bias is None or a.export_for_source_row is not None,
        f"{name}: bias needs export_for_source_row, but it is None",
    )
    choices = 1 if a.scales is None else a.scales.shape[1]
    index = a.expanded_src_to_dst_row.long().reshape(choices, -1).t()
    rows = torch.where((index >= 0)[..., None], a.expanded_permuted_rows.float()[index.clamp_min(0)], 0)
    if a.bias is not None:
        rows = rows + a.bias.float()[a.export_for_source_row.long()]
    if a.scales is not None:
        rows = rows * a.scales.float()[..., None]
    result = rows.sum(1)
    for skip in (a.skip1, a.skip2):
        result = result if skip is None else result + skip.float()
    return result.to(a.expanded_permuted_rows.dtype)
