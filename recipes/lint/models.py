"""The sizes of the model that a recipe trains: from its config.json where it is there, else from a table of models.

Linting happens on a laptop, long before 470 GB of weights are anywhere, so the sizes of the models that our recipes
name are written here. They are the values of the models' own config.json.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

PATH = "actor_rollout_ref.model.path"
QK_NORM = "actor_rollout_ref.actor.megatron.override_transformer_config.qk_layernorm"

# Our name of a size and config.json's.
NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "experts": "num_experts",
    "active": "num_experts_per_tok",
    "expert_width": "moe_intermediate_size",
    "width": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
}
MOE = ("experts", "active", "expert_width")
OPTIONAL = {"head_dim", "positions", "width", *MOE}


@dataclass(frozen=True)
class Model:
    """A transformer of the Qwen3 family. A dense one has no experts (0)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: int = 0
    active: int = 0
    expert_width: int = 0
    width: int = 0
    positions: int = 0  # 0: not known
    tied: bool = False
    qk_norm: bool = True


_235B = Model("Qwen3-235B-A22B", 94, 4096, 64, 4, 128, 151936, 128, 8, 1536, 12288, 40960)
_30B = Model("Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 151936, 128, 8, 768, 6144, 40960)
KNOWN = {
    "qwen3-235b-a22b": _235B,
    "qwen3-30b-a3b": _30B,
    # The model that a recipe stands for before its config.json is there: depth, heads and experts as Qwen3-235B-A22B.
    "qwen3-moe-no-qk-norm": replace(_235B, name="Qwen3-MoE without QK norms", qk_norm=False),
}


def find(values: Mapping[str, object]) -> Model | None:
    """The model of a recipe, given its flat values; None where nothing says how large it is."""
    model = _from_file(values.get(PATH)) or _from_mapping("the toy model", values.get("launch.model"))
    model = model or _known(values.get(PATH))
    if model and isinstance(values.get(QK_NORM), bool):
        model = replace(model, qk_norm=values[QK_NORM])
    return model


def _from_file(path: object) -> Model | None:
    try:
        given = json.loads((Path(str(path)).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: ~user of an unknown user
        return None
    return _from_mapping(str(path), given)


def _from_mapping(name: str, given: object) -> Model | None:
    if not isinstance(given, dict):
        return None
    found = {ours: given.get(theirs) for ours, theirs in NAMES.items()}
    if found["head_dim"] is None and _is_size(found["hidden"]) and _is_size(found["heads"]):
        found["head_dim"] = found["hidden"] // found["heads"]
    required = [field.name for field in fields(Model) if field.name in NAMES and field.name not in OPTIONAL]
    if not all(_is_size(found[size]) for size in [*required, "head_dim"]):
        return None
    sizes = {size: value if _is_size(value) else 0 for size, value in found.items()}
    if not all(sizes[size] for size in MOE):
        sizes |= dict.fromkeys(MOE, 0)
    return Model(name, **sizes, tied=given.get("tie_word_embeddings") is True)


def _known(path: object) -> Model | None:
    """The model whose name is a part of the path, or of a name on the model hub."""
    if not isinstance(path, str):
        return None
    parts = [part.lower() for part in re.split(r"[/\\]", path)]
    return next((KNOWN[part] for part in reversed(parts) if part in KNOWN), None)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
