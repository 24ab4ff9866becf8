"""How many parameters of a Qwen3 model lie on a rank: exact, as Megatron and vLLM cut it.

Compared with Megatron core_v0.12.1's own GPTModel on the meta device, tolerance 0.
"""

from dataclasses import dataclass

from recipes.lint.models import Model


@dataclass(frozen=True)
class Share:
    """Parameters of a rank of one pipeline stage."""

    dense: int  # what every copy of the model has
    experts: int  # what every copy of the experts has

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.experts


def stages(layers: int, pp: int, first: int | None = None, last: int | None = None) -> list[int]:
    """Layers of each stage (core_v0.12.1, core/transformer/transformer_block.py:61-117)."""
    rest = layers - (first or 0) - (last or 0)
    middle = rest // max(1, pp - (first is not None) - (last is not None))
    found = [middle] * pp
    if first is not None:
        found[0] = first
    if last is not None:
        found[-1] = last
    return found


def attention(model: Model, tp: int) -> int:
    """Query, key, value and output projections of a layer; heads are cut by tp."""
    width = model.head_dim
    return (model.hidden * (model.heads + 2 * model.kv_heads) * width + model.heads * width * model.hidden) // tp


def norms(model: Model) -> int:
    """Two norms of a layer, and one each over the heads of queries and keys; every rank has all of them."""
    return 2 * model.hidden + (2 * model.head_dim if model.qk_norm else 0)


def of_rank(model: Model, tp: int, ep: int, etp: int, layers: int, first: bool, last: bool) -> Share:
    """Parameters of a rank in a stage of `layers` layers, with the embedding if `first`, the head if `last`."""
    dense = layers * (attention(model, tp) + norms(model))
    experts = 0
    if model.experts:
        dense += layers * model.hidden * model.experts  # the router, on every rank
        experts = layers * model.experts * 3 * model.hidden * model.expert_width // (ep * etp)
    else:
        dense += layers * 3 * model.hidden * model.width // tp
    ends = model.vocabulary * model.hidden // tp
    if first:
        dense += ends
    if last:
        dense += model.hidden + (0 if model.tied and first else ends)
    return Share(dense, experts)


def total(model: Model) -> int:
    """The whole model."""
    return of_rank(model, 1, 1, 1, model.layers, first=True, last=True).total


def of_engine(model: Model, tp: int, ep: int) -> int:
    """Parameters of a rollout rank; key-value heads are replicated beyond their number.

    vLLM 0.11.0, model_executor/models/qwen3_moe.py. `ep` 1: experts are cut by tp.
    """
    width = model.head_dim
    query = model.hidden * (model.heads // tp) * width
    key_value = 2 * model.hidden * max(1, model.kv_heads // tp) * width
    layer = 2 * query + key_value + norms(model)
    if model.experts:
        layer += model.hidden * model.experts
        layer += model.experts * 3 * model.hidden * model.expert_width // (ep if ep > 1 else tp)
    else:
        layer += 3 * model.hidden * model.width // tp
    ends = (1 if model.tied else 2) * model.vocabulary * model.hidden // tp
    return model.layers * layer + ends + model.hidden


def cache_bytes(model: Model, tp: int) -> int:
    """Bytes of KV cache for a token on a rollout rank, in bfloat16."""
    return 2 * model.layers * max(1, model.kv_heads // tp) * model.head_dim * 2
