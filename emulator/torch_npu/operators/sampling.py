"""npu_top_k_top_p: what sampling leaves of the logits (op-plugin 691bf15, op_plugin_functions.yaml)."""

import torch

from .registry import check, operator


@operator(
    "npu_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor",
    meta=lambda logits, p, k: torch.empty_like(logits),
)
def npu_top_k_top_p(logits, p, k):
    """logits [rows, words] with -inf for every word outside the k likeliest and outside the nucleus of probability p.

    k [rows] int32 and p [rows]; the likeliest word always stays. Equal logits at the border of k all stay.
    """
    for name, limit in (("p", p), ("k", k)):
        check(
            limit is None or limit.shape == logits.shape[:1],
            lambda n=name, t=limit: (
                f"npu_top_k_top_p: {n} must have one value a row, [{logits.shape[0]}], but has shape {tuple(t.shape)}"
            ),
        )
    values, order = logits.float().sort(-1)
    words = values.shape[-1]
    if k is not None:
        border = values.gather(1, (words - k.long().clamp(1, words))[:, None])
        values = values.masked_fill(values < border, float("-inf"))
    if p is not None:
        outside = values.softmax(-1).cumsum(-1) <= 1 - p.float()[:, None]
        outside[:, -1] = False
        values = values.masked_fill(outside, float("-inf"))
    return torch.empty_like(values).scatter_(1, order, values).to(logits.dtype)
