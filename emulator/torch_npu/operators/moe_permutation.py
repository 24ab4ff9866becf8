"""Tokens sorted by expert and back, with gradients, by a list of experts or by a routing map.

Signatures: op-plugin 691bf15, op_plugin_functions.yaml and derivatives.yaml; shapes: ops/opapi/MoeToken*.cpp there;
what an index means: MindSpeed 35da6ac, te/pytorch/permutation.py.
"""

import torch

from .registry import check, composite, gradient, operator, unwritten


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
    weights = None if probs is None else probs.new_empty(sorted_indices.shape)
    return permuted_tokens.new_empty(tuple(restore_shape[:2])), index, torch.empty_like(index), weights


@operator(
    "_npu_moe_token_unpermute_with_routing_map(Tensor permuted_tokens, Tensor sorted_indices, int[] restore_shape, *, "
    "Tensor? probs=None, Tensor? routing_map=None, bool drop_and_pad=False) -> (Tensor, Tensor, Tensor, Tensor)",
    meta=_map_unpermute_meta,
)
def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens, sorted_indices, restore_shape, probs, routing_map, drop_and_pad
):
    """Adds the rows of each token up, weighted by probs [T, experts] where given.

    -> tokens [restore_shape], out_index and permuted_token_id (both belong to drop_and_pad), the chosen
    probabilities token by token.
    """
    name = "_npu_moe_token_unpermute_with_routing_map"
    _check_padding(name, drop_and_pad)
    check(routing_map is not None, f"{name}: routing_map is None; the emulator needs it to know the rows' tokens")
    token, expert = _pairs(routing_map)
    rows = permuted_tokens[sorted_indices.long()].float()
    weights = None
    if probs is not None:
        weights = probs[token, expert]
        rows = rows * weights.float()[:, None]
    result = rows.new_zeros(tuple(restore_shape[:2])).index_add_(0, token, rows)
    index = unwritten(sorted_indices, sorted_indices.shape)
    return result.to(permuted_tokens.dtype), index, index.clone(), weights


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
