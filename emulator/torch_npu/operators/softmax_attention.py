"""The arithmetic every attention operator shares, so that trainer and rollout compute the same numbers.

One sequence at a time: query [N, S, D], key [KV, T, D], value [KV, T, Dv], where N is a multiple of KV (grouped
queries). Everything inside is float32.
"""

from collections.abc import Callable

import torch

FLOOR = torch.finfo(torch.float32).min
"""Stands for the maximum of a row that attends to nothing."""

Dropout = Callable[[torch.Tensor], torch.Tensor]
"""Maps probabilities to probabilities with some dropped and the others scaled up; the same ones at every call."""


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    blocked: torch.Tensor | None,
    dropout: Dropout | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of one sequence: result [N, S, Dv], row maximum and row sum of the exponentials [N, S], all float32.

    blocked  bool [S, T], or one that broadcasts to [N, S, T]: True where a query must not look. A row that looks
             nowhere
             gives zeros, with maximum FLOOR and sum 0.
    """
    heads, rows, _ = query.shape
    if key.shape[1] == 0:
        empty = query.new_zeros((heads, rows), dtype=torch.float32)
        return empty.new_zeros((heads, rows, value.shape[-1])), empty + FLOOR, empty
    scores = _scores(query, key, scale, blocked)
    maximum = scores.amax(-1, keepdim=True).clamp_min(FLOOR)
    weights = torch.exp(scores - maximum)
    total = weights.sum(-1, keepdim=True)
    kept = dropout(weights) if dropout else weights
    result = _by_group(kept, value) / total.clamp_min(torch.finfo(torch.float32).tiny)
    return result, maximum.squeeze(-1), total.squeeze(-1)


def backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    result: torch.Tensor,
    maximum: torch.Tensor,
    total: torch.Tensor,
    scale: float,
    blocked: torch.Tensor | None,
    dropout: Dropout | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value, float32.

    maximum, total [N, S] and result [N, S, Dv] are those of the whole row: where a row's keys are spread over several
    calls (ring attention), they come from all of them.
    """
    if key.shape[1] == 0:
        return query.float() * 0, key.float(), value.float()
    groups = key.shape[0]
    scores = _scores(query, key, scale, blocked)
    weights = torch.exp(scores - maximum[..., None]) / total[..., None].clamp_min(torch.finfo(torch.float32).tiny)
    kept = dropout(weights) if dropout else weights
    grad = grad.float()
    grad_weights = _by_group(grad, value.transpose(1, 2))
    grad_weights = dropout(grad_weights) if dropout else grad_weights
    grad_scores = weights * (grad_weights - (grad * result.float()).sum(-1, keepdim=True)) * scale
    grad_query = _by_group(grad_scores, key)
    grad_key = _fold(grad_scores, groups).transpose(1, 2) @ _fold(query.float(), groups)
    grad_value = _fold(kept, groups).transpose(1, 2) @ _fold(grad, groups)
    return grad_query, grad_key, grad_value


def causal(rows: int, columns: int, offset: int, device: torch.device) -> torch.Tensor:
    """Blocked positions [rows, columns] where row i may look at columns up to i + offset."""
    return band(rows, columns, offset, columns + rows, 0, device)


def band(rows: int, columns: int, offset: int, before: int, after: int, device: torch.device) -> torch.Tensor:
    """Blocked positions where row i may look from column i + offset - before to column i + offset + after."""
    distance = torch.arange(columns, device=device)[None] - torch.arange(rows, device=device)[:, None] - offset
    return (distance > after) | (distance < -before)


def _scores(query, key, scale, blocked):
    scores = _by_group(query, key.transpose(1, 2)) * scale
    return scores if blocked is None else scores.masked_fill(blocked, float("-inf"))


def _by_group(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[N, S, A] x [KV, A, B] -> [N, S, B]: each of the KV matrices serves N / KV consecutive heads."""
    product = _fold(left.float(), right.shape[0]) @ right.float()
    return product.reshape(*left.shape[:2], right.shape[2])


def _fold(x: torch.Tensor, groups: int) -> torch.Tensor:
    """[N, S, A] -> [KV, N / KV * S, A]: the rows that meet the same key and value."""
    heads, rows, width = x.shape
    return x.reshape(groups, heads // groups * rows, width)
