"""Which token goes to which expert, and back: gating, routing, permutation of a rank's own tokens.

Signatures and result types: op-plugin 691bf15 (op_plugin_functions.yaml, _meta_registrations.py,
ops/opapi/Moe*.cpp); what an index means: those functions' use in vllm-ascend 15b2e5c (ops/moe/token_dispatcher.py)
and MindSpeed 35da6ac (te/pytorch/permutation.py).
"""

import torch

from .registry import check, composite, gradient, operator, unwritten


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


def _permuted_count(indices, num_out_tokens) -> int:
    """Rows of npu_moe_token_permute: 0 or None means all, a negative number all but that many."""
    wanted = num_out_tokens or 0
    return min(wanted, indices.numel()) if wanted > 0 else wanted + indices.numel()


def _check_padding(name: str, padded: bool) -> None:
    check(not padded, f"{name}: the emulator does not implement padded or dropped tokens", NotImplementedError)


@operator(
    "npu_moe_token_permute(Tensor tokens, Tensor indices, int? num_out_tokens=None, bool padded_mode=False) "
    "-> (Tensor, Tensor)",
    meta=lambda tokens, indices, num_out_tokens, padded_mode: (
        tokens.new_empty((_permuted_count(indices, num_out_tokens), tokens.shape[1])),
        indices.new_empty((indices.numel(),), dtype=torch.int32),
    ),
)
def npu_moe_token_permute(tokens, indices, num_out_tokens, padded_mode):
    """Copies tokens [T, H] sorted by expert; indices [T] or [T, k]: the experts.

    -> rows [.., H], and for every (token, choice) the row it went to (int32).
    """
    _check_padding("npu_moe_token_permute", padded_mode)
    width = 1 if indices.dim() == 1 else indices.shape[1]
    order = indices.reshape(-1).argsort(stable=True)
    rows = tokens[order[: _permuted_count(indices, num_out_tokens)] // width]
    return rows, order.argsort().to(torch.int32)


@operator(
    "npu_moe_token_permute_grad(Tensor tokens, Tensor grad_permuted_tokens, Tensor indices, Tensor sorted_indices, "
    "bool padded_mode=False) -> Tensor",
    meta=lambda tokens, *_: torch.empty_like(tokens),
    phase="backward",
)
def npu_moe_token_permute_grad(tokens, grad_permuted_tokens, indices, sorted_indices, padded_mode):
    """The sum of the gradients of a token's copies."""
    _check_padding("npu_moe_token_permute_grad", padded_mode)
    grads = _rows_or_zero(grad_permuted_tokens.float(), sorted_indices)
    return grads.reshape(tokens.shape[0], -1, tokens.shape[1]).sum(1).to(tokens.dtype)


def _rows_or_zero(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """rows[index], zeros for rows that were not kept."""
    kept = index < rows.shape[0]
    return torch.where(kept[:, None], rows[index.long() * kept], 0)


@gradient("npu_moe_token_permute", saves=("tokens", "indices"), saves_outputs=(1,), inputs=("tokens",))
def _permute_gradient(saved, grad, _):
    grads = torch.ops.npu.npu_moe_token_permute_grad(
        saved.tokens, grad, saved.indices, saved.outputs[1], saved.padded_mode
    )
    return {"tokens": grads}


def _unpermute_meta(permuted_tokens, sorted_indices, probs, *_):
    width = 1 if probs is None else probs.shape[1]
    return permuted_tokens.new_empty((sorted_indices.shape[0] // width, permuted_tokens.shape[1]))


@operator(
    "npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, "
    "bool padded_mode=False, int[]? restore_shape=None) -> Tensor",
    meta=_unpermute_meta,
)
def npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape):
    """Gathers the rows of each token and adds them up, weighted by probs [T, k]; the inverse of npu_moe_token_permute.

    A row that is read with weight 0 still counts: 0 * NaN is NaN.
    """
    name = "npu_moe_token_unpermute"
    _check_padding(name, padded_mode)
    check(
        permuted_tokens.dim() == 2 and sorted_indices.dim() == 1,
        lambda: (
            f"{name}: permuted_tokens must have 2 dimensions and sorted_indices 1, but have {permuted_tokens.dim()} "
            f"and {sorted_indices.dim()}"
        ),
    )
    width = 1 if probs is None else probs.shape[1]
    rows = _rows_or_zero(permuted_tokens.float(), sorted_indices)
    rows = rows.reshape(sorted_indices.shape[0] // width, width, -1)
    if probs is not None:
        rows = rows * probs.float()[..., None]
    return rows.sum(1).to(permuted_tokens.dtype)


@operator(
    "npu_moe_token_unpermute_grad(Tensor permuted_tokens, Tensor grad_unpermuted_tokens, Tensor sorted_indices, "
    "Tensor? probs=None, bool padded_mode=False, int[]? restore_shape=None) -> (Tensor, Tensor)",
    meta=lambda permuted_tokens, grad_unpermuted_tokens, sorted_indices, probs, *_: (
        torch.empty_like(permuted_tokens),
        None if probs is None else torch.empty_like(probs, dtype=grad_unpermuted_tokens.dtype),
    ),
    phase="backward",
)
def npu_moe_token_unpermute_grad(
    permuted_tokens, grad_unpermuted_tokens, sorted_indices, probs, padded_mode, restore_shape
):
    """-> gradients of the rows and of probs (None without)."""
    _check_padding("npu_moe_token_unpermute_grad", padded_mode)
    width = 1 if probs is None else probs.shape[1]
    grad = grad_unpermuted_tokens.float().repeat_interleave(width, 0)
    weighted = grad if probs is None else grad * probs.float().reshape(-1, 1)
    index, kept = sorted_indices.long(), sorted_indices < permuted_tokens.shape[0]
    rows = torch.zeros_like(permuted_tokens, dtype=torch.float32)
    rows[index[kept]] = weighted[kept]
    if probs is None:
        return rows.to(permuted_tokens.dtype), None
    grad_probs = (grad * _rows_or_zero(permuted_tokens.float(), sorted_indices)).sum(-1).reshape(probs.shape)
    return rows.to(permuted_tokens.dtype), grad_probs.to(grad_unpermuted_tokens.dtype)


@gradient(
    "npu_moe_token_unpermute",
    saves=("permuted_tokens", "sorted_indices", "probs"),
    inputs=("permuted_tokens", "probs"),
)
def _unpermute_gradient(saved, grad):
    rows, probs = torch.ops.npu.npu_moe_token_unpermute_grad(
        saved.permuted_tokens, grad, saved.sorted_indices, saved.probs, saved.padded_mode, saved.restore_shape
    )
    return {"permuted_tokens": rows, "probs": probs}


# ---- by routing map: bool [T, experts]
# ------------------------------------------------------------------------------------ sorted_indices[j] is the row
# that the j-th chosen (token, expert) pair went to, pairs counted token by token


def _pairs(routing_map: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Token and expert of every chosen pair, token by token."""
    return routing_map.bool().nonzero(as_tuple=True)


def _map_permute_meta(a):
    wanted = a.tokens.shape[0] if a.num_out_tokens is None else a.num_out_tokens
    count = wanted // max(a.routing_map.shape[0], 1) * a.routing_map.shape[0]
    probs = None if a.probs is None else a.probs.new_empty((count,))
    return a.tokens.new_empty((count, a.tokens.shape[1])), probs, a.tokens.new_empty((count,), dtype=torch.int32)


@operator(
    "npu_moe_token_permute_with_routing_map(Tensor tokens, Tensor routing_map, *, Tensor? probs=None, "
    "int? num_out_tokens=None, bool drop_and_pad=False) -> (Tensor, Tensor, Tensor)",
    meta=_map_permute_meta,
    gathered=True,
)
def npu_moe_token_permute_with_routing_map(a):
    """Copies tokens [T, H] sorted by expert, then token.

    -> rows, their probabilities (None without probs [T, experts]), sorted_indices (int32).
    """
    name = "npu_moe_token_permute_with_routing_map"
    _check_padding(name, a.drop_and_pad)
    token, expert = _pairs(a.routing_map)
    wanted = a.tokens.shape[0] if a.num_out_tokens is None else a.num_out_tokens
    each = a.routing_map.bool().sum(1)
    check(
        bool((each * max(len(each), 1) == wanted).all()),
        lambda: (
            f"{name}: every row of routing_map must have num_out_tokens / tokens = {wanted} / {len(each)} entries, but "
            f"they have {sorted(set(each.tolist()))}"
        ),
    )
    check(
        a.probs is None or a.probs.dtype == a.tokens.dtype,
        lambda: f"{name}: probs must have the type of tokens, {a.tokens.dtype}, but is {a.probs.dtype}",
    )
    order = expert.argsort(stable=True)
    probs = None if a.probs is None else a.probs[token, expert][order]
    return a.tokens[token[order]], probs, order.argsort().to(torch.int32)


@operator(
    "npu_moe_token_permute_with_routing_map_grad(Tensor permuted_token_out_grad, Tensor? probs_grad, "
    "Tensor sorted_indices, Tensor routing_map, SymInt experts_num, SymInt tokens_num, bool drop_and_pad) "
    "-> (Tensor, Tensor)",
    meta=lambda grad, probs_grad, sorted_indices, routing_map, experts, tokens, drop_and_pad: (
        grad.new_empty((tokens, grad.shape[1])),
        None if probs_grad is None else probs_grad.new_empty((tokens, experts)),
    ),
    phase="backward",
)
def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad, probs_grad, sorted_indices, routing_map, experts_num, tokens_num, drop_and_pad
):
    """-> gradients of tokens [T, H] and of probs [T, experts] (None without)."""
    _check_padding("npu_moe_token_permute_with_routing_map_grad", drop_and_pad)
    token, expert = _pairs(routing_map)
    rows = permuted_token_out_grad[sorted_indices.long()].float()
    grad = rows.new_zeros((tokens_num, rows.shape[1])).index_add_(0, token, rows)
    grad_probs = None
    if probs_grad is not None:
        grad_probs = probs_grad.new_zeros((tokens_num, experts_num))
        grad_probs[token, expert] = probs_grad[sorted_indices.long()]
    return grad.to(permuted_token_out_grad.dtype), grad_probs


@gradient(
    "npu_moe_token_permute_with_routing_map",
    saves=("tokens", "routing_map", "probs"),
    saves_outputs=(2,),
    inputs=("tokens", "probs"),
    outputs=(0, 1),
)
def _map_permute_gradient(saved, grad, probs_grad, _):
    tokens, probs = torch.ops.npu.npu_moe_token_permute_with_routing_map_grad(
        grad,
        None if saved.probs is None else probs_grad,
        saved.outputs[2],
        saved.routing_map,
        saved.routing_map.shape[1],
        saved.tokens.shape[0],
        saved.drop_and_pad,
    )
    return {"tokens": tokens, "probs": probs}


def _map_unpermute_meta(permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad):
    index = torch.empty_like(sorted_indices)
    per_row = None if probs is None else probs.new_empty(sorted_indices.shape)
    return permuted_tokens.new_empty(tuple(restore_shape[:2])), index, torch.empty_like(index), per_row


@operator(
    "_npu_moe_token_unpermute_with_routing_map(Tensor permuted_tokens, Tensor sorted_indices, int[] restore_shape, *, "
    "Tensor? probs=None, Tensor? routing_map=None, bool drop_and_pad=False) -> (Tensor, Tensor, Tensor, Tensor)",
    meta=_map_unpermute_meta,
)
def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad
):
    """Adds the rows of each token up, weighted by probs [T, experts] where given.

    -> tokens [restore_shape], out_index and permuted_token_id (both belong to drop_and_pad), the rows' probabilities.
    """
    name = "_npu_moe_token_unpermute_with_routing_map"
    _check_padding(name, drop_and_pad)
    check(routing_map is not None, f"{name}: routing_map is None; the emulator needs it to know the rows' tokens")
    token, expert = _pairs(routing_map)
    rows = permuted_tokens[sorted_indices.long()].float()
    per_row = None
    if probs is not None:
        weights = probs[token, expert]
        rows = rows * weights.float()[:, None]
        per_row = torch.empty_like(weights)
        per_row[sorted_indices.long()] = weights
    result = rows.new_zeros(tuple(restore_shape[:2])).index_add_(0, token, rows)
    index = unwritten(sorted_indices, sorted_indices.shape)
    return result.to(permuted_tokens.dtype), index, index.clone(), per_row


@operator(
    "npu_moe_token_unpermute_with_routing_map_grad(Tensor unpermuted_tokens_grad, Tensor out_index, "
    "Tensor permuted_token_id, Tensor? routing_map, Tensor? permuted_tokens, Tensor? probs, bool drop_and_pad, "
    "int[] restore_shape) -> (Tensor, Tensor)",
    meta=lambda grad, out_index, token_id, routing_map, permuted_tokens, probs, drop_and_pad, restore_shape: (
        grad.new_empty((out_index.shape[0], grad.shape[1])),
        None if probs is None else torch.empty_like(probs, dtype=grad.dtype),
    ),
    phase="backward",
)
def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad,
    out_index,
    permuted_token_id,
    routing_map,
    permuted_tokens,
    probs,
    drop_and_pad,
    restore_shape,
):
    """-> gradients of the rows and of probs (None without). out_index: sorted_indices of the forward operator."""
    name = "npu_moe_token_unpermute_with_routing_map_grad"
    _check_padding(name, drop_and_pad)
    check(routing_map is not None, f"{name}: routing_map is None; the emulator needs it to know the rows' tokens")
    token, expert = _pairs(routing_map)
    index = out_index.long()
    grad = unpermuted_tokens_grad[token].float()
    rows = torch.empty_like(grad)
    if probs is None:
        rows[index] = grad
        return rows.to(unpermuted_tokens_grad.dtype), None
    check(permuted_tokens is not None, f"{name}: the gradient of probs needs permuted_tokens, but it is None")
    rows[index] = grad * probs[token, expert].float()[:, None]
    grad_probs = torch.zeros_like(probs, dtype=torch.float32)
    grad_probs[token, expert] = (grad * permuted_tokens[index].float()).sum(-1)
    return rows.to(unpermuted_tokens_grad.dtype), grad_probs.to(unpermuted_tokens_grad.dtype)


@gradient(
    "_npu_moe_token_unpermute_with_routing_map",
    saves=("permuted_tokens", "sorted_indices", "routing_map", "probs"),
    inputs=("permuted_tokens", "probs"),
)
def _map_unpermute_gradient(saved, grad, *_):
    rows, probs = torch.ops.npu.npu_moe_token_unpermute_with_routing_map_grad(
        grad,
        saved.sorted_indices,
        saved.sorted_indices,
        saved.routing_map,
        saved.permuted_tokens,
        saved.probs,
        saved.drop_and_pad,
        saved.restore_shape,
    )
    return {"permuted_tokens": rows, "probs": probs}


@composite(
    "npu_moe_token_unpermute_with_routing_map(Tensor permuted_tokens, Tensor sorted_indices, int[] restore_shape, *, "
    "Tensor? probs=None, Tensor? routing_map=None, bool drop_and_pad=False) -> Tensor"
)
def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens, sorted_indices, restore_shape, *, probs=None, routing_map=None, drop_and_pad=False
):
    """The tokens alone."""
    return torch.ops.npu._npu_moe_token_unpermute_with_routing_map(
        permuted_tokens, sorted_indices, restore_shape, probs=probs, routing_map=routing_map, drop_and_pad=drop_and_pad
    )[0]
