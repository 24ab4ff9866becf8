"""Attention row by row: for every query the list of keys it may look at, then their softmax. Slow, float64."""

from collections.abc import Callable

import torch

Allowed = Callable[[int, int], bool]
"""(query position, key position) -> whether the query looks at the key."""


def attention(query, key, value, scale: float, allowed: Allowed) -> torch.Tensor:
    """query [S, N, D], key [T, KV, D], value [T, KV, E] -> [S, N, E]; a query that looks nowhere gets zeros."""
    rows = []
    for i in range(query.shape[0]):
        keys = [j for j in range(key.shape[0]) if allowed(i, j)]
        rows.append(
            torch.stack(
                [_one(query[i, n], *_head(key, value, n, query.shape[1], keys), scale) for n in range(query.shape[1])]
            )
        )
    return torch.stack(rows) if rows else query.new_zeros((0, query.shape[1], value.shape[2]))


def statistics(query, key, scale: float, allowed: Allowed) -> tuple[torch.Tensor, torch.Tensor]:
    """Row maximum and sum of exponentials, [S, N]."""
    query, key = query.detach(), key.detach()
    maximum = query.new_zeros(query.shape[:2])
    total = query.new_zeros(query.shape[:2])
    for i in range(query.shape[0]):
        keys = [j for j in range(key.shape[0]) if allowed(i, j)]
        for n in range(query.shape[1]):
            scores = [scale * float(query[i, n] @ key[j, n * key.shape[1] // query.shape[1]]) for j in keys]
            maximum[i, n] = max(scores)
            total[i, n] = sum(torch.exp(torch.tensor(s - max(scores), dtype=torch.float64)) for s in scores)
    return maximum, total


def _head(key, value, n, heads, keys):
    group = n * key.shape[1] // heads
    return key[keys, group], value[keys, group]


def _one(query, keys, values, scale):
    if not len(keys):
        return query.new_zeros(values.shape[1])
    weights = torch.exp(scale * (keys @ query))
    return (weights[:, None] * values).sum(0) / weights.sum()
