"""`override_transformer_config`: keys that nobody knows, values of the wrong kind, switches that do nothing.

verl hands the dict to MindSpeed's repatch, which sets every key as an attribute unchecked
(mindspeed/megatron_adaptor.py:61-67), and to TransformerConfig, from which unknown names are dropped with a warning
(verl 21271aa, models/mcore/config_converter.py:147-157). So a typo is accepted by both, at both of their commits.
"""

import difflib
from collections.abc import Iterator
from functools import cache

from omegaconf import OmegaConf

from recipes import kinds, schema
from recipes.lint.facts import ACTOR, OVERRIDE, REF, SIZES, Facts
from recipes.lint.rule import Fault

EMPTY = OmegaConf.create({})

# Switches of the actor's override that change nothing: (key, matrices, why).
BOTH = ("performance", "commercial")
NO_EFFECT = (
    (
        "use_fused_swiglu",
        BOTH,
        "nobody reads it; the dense SwiGLU is always fused (features_manager, FusedSwigluFeature)",
    ),
    (
        "use_fused_rmsnorm",
        BOTH,
        "PTNorm sets it for every RMSNorm anyway (core/megatron_basic/megatron_basic.py:103; at 1cdd0ab: 98)",
    ),
    ("apply_rope_fusion", BOTH, "apply_rotary_pos_emb resets it with a warning, as Apex's operator is not there"),
    ("use_distributed_optimizer", BOTH, "MindSpeed reads it only with reuse_fp32_param; verl's own key is what counts"),
    (
        "gemm_gradient_accumulation_fusion",
        ("performance",),
        "MoEFwdBwdOverlapFeature sets it to false for everybody (features_manager/moe/fb_overlap.py:52)",
    ),
    (
        "gradient_accumulation_fusion",
        ("performance",),
        "MoEFwdBwdOverlapFeature sets it to false for everybody (features_manager/moe/fb_overlap.py:48)",
    ),
)


# Names that MindSpeed's code reads outside of its features, so that the schema does not have them.
READ_ELSEWHERE = {"use_distributed_optimizer": schema.Field("bool", None)}  # core/optimizer, core/memory
# What a recipe of the cpu matrix says to the MindSpeed of an image, in which it runs too.
READ_IN_IMAGES = {"use_flash_attn": schema.Field("bool", None)}


@cache
def known(matrix: str) -> dict[str, schema.Field]:
    """What the dict may hold at a matrix: Megatron's fields, and MindSpeed's arguments where MindSpeed is there."""
    mindspeed = schema.load("mindspeed", matrix)
    # Megatron's fields win over the bare names that MindSpeed reads: they have a type.
    elsewhere = READ_ELSEWHERE if mindspeed else READ_IN_IMAGES
    return {**elsewhere, **mindspeed, **schema.load("megatron.mla", matrix)}


def unknown(facts: Facts) -> Iterator[Fault]:
    """A key that neither MindSpeed nor Megatron has at this matrix's commits; the nearest name that they have."""
    for key in _given(facts):
        if key in known(facts.matrix):
            continue
        near = difflib.get_close_matches(key, known(facts.matrix), n=1, cutoff=0.75)
        found = f"; did you mean {near[0]}?" if near else ""
        yield Fault(
            f"{OVERRIDE}.{key}",
            f"{key}: expected a name that MindSpeed or Megatron reads, found one that both drop{found}",
            f"write {near[0]}" if near else "correct the name or remove the line",
        )


def wrong_type(facts: Facts) -> Iterator[Fault]:
    """A value that the field cannot take. Hydra's values arrive as they are: "1" stays a text."""
    for key, value in _given(facts).items():
        field = known(facts.matrix).get(key)
        if field is None or not field.type or value is None:
            continue
        accepted = kinds.expected(key, EMPTY, EMPTY, {key: field.type})
        if key == "attention_backend":  # verl turns the name into the enum, config_converter.py:159
            accepted = {"text"}
        if message := kinds.mismatch(key, value, accepted):
            yield Fault(f"{OVERRIDE}.{key}", message, "write a value of that kind")


def wrong_choice(facts: Facts) -> Iterator[Fault]:
    """A value that is none of the choices: argparse would refuse it, repatch does not look."""
    for key, value in _given(facts).items():
        field = known(facts.matrix).get(key)
        if field and field.choices and value is not None and value not in field.choices:
            choices = ", ".join(map(str, field.choices))
            yield Fault(f"{OVERRIDE}.{key}", f"{key}: expected one of {choices}, found {value!r}", "write one of them")


def no_effect(facts: Facts) -> Iterator[Fault]:
    """A switch that is on and changes nothing; see NO_EFFECT."""
    given = _given(facts)
    for key, matrices, why in NO_EFFECT:
        if given.get(key) and facts.matrix in matrices:
            yield Fault(f"{OVERRIDE}.{key}", f"{key}: no effect: {why}", "remove it, or keep it knowing that")


def context_parallel(facts: Facts) -> Iterator[Fault]:
    """cp > 1 stands in the override, too, with the same value.

    MindSpeed sees the override alone and otherwise leaves Megatron's attention in place, which refuses cp
    (core_v0.12.1, core/transformer/dot_product_attention.py:50; features_manager/context_parallel/
    context_parallel_feature.py at 35da6ac and 1cdd0ab). Another value: groups of one size, attention of another.
    """
    cp, key = facts.size("cp"), f"{OVERRIDE}.context_parallel_size"
    given = facts.get(key)
    if cp and given != cp and not (given is None and cp == 1):
        found = "none" if given is None else given
        yield Fault(
            key,
            f"{key}: expected the same as {SIZES['cp']}, {cp}, found {found}",
            f"write ${{{SIZES['cp']}}}",
        )


def pipeline_key(facts: Facts) -> Iterator[Fault]:
    """No pipeline_model_parallel_size >= 2 in the override at MindSpeed 1cdd0ab.

    It switches OptimizeP2PCommFeature on, which patches megatron.training (features_manager/pipeline_parallel/
    optimize_p2p_comm.py:36-39), a package that Megatron's wheel does not have. Guarded from MindSpeed 20846686 on.
    """
    key = f"{OVERRIDE}.pipeline_model_parallel_size"
    if (facts.size(key) or 1) >= 2:
        yield Fault(
            key,
            f"{key}: expected none, found {facts.shown(key)}: MindSpeed then asks for megatron.training",
            "leave it out (pp of the actor is enough), or apply the patch mindspeed/p2p-guard",
        )


def flash_attention(facts: Facts) -> Iterator[Fault]:
    """use_flash_attn is on: verl packs sequences, which MindSpeed's attention takes in this mode only.

    Off: RuntimeError "Please set micro_batch_size or set use_flash_attn=True in config." in log-prob, then the run
    hangs (seen on CPU with MindSpeed 35da6ac).
    """
    key = f"{OVERRIDE}.use_flash_attn"
    if facts.get(key) is not True:
        yield Fault(key, f"{key}: expected true, found {facts.shown(key)}", "set it to true")


def grouped_experts(facts: Facts) -> Iterator[Fault]:
    """The key moe_grouped_gemm stands in the override, or the experts' SwiGLU is not fused (35da6ac).

    MoEGmmFeature looks for the argument (features_manager/moe/gmm.py); verl's own moe_grouped_gemm=True reaches
    TransformerConfig only. Counted on CPU: 0 calls of npu_swiglu in training without the key, 48 with it.
    """
    key = f"{OVERRIDE}.moe_grouped_gemm"
    if facts.model and facts.model.experts and facts.get(key) is not True:
        yield Fault(key, f"{key}: expected true, found {facts.shown(key)}: the experts' SwiGLU is not fused", "set it")


def on_reference(facts: Facts) -> Iterator[Fault]:
    """Nothing under the reference model's override: one key replaces the whole dict that it inherits from the actor.

    verl's default is an interpolation (trainer/config/ref/megatron_ref.yaml); MindSpeed reads the actor's dict anyway
    (verl 21271aa, workers/megatron_workers.py:185).
    """
    key = f"{REF}.megatron.override_transformer_config"
    own = facts.written.get(key)
    if isinstance(own, dict) and own:
        lost = sorted(set(facts.below(OVERRIDE)) - set(own))
        yield Fault(
            key,
            f"{key}: expected the inherited dict of {ACTOR}, found {sorted(map(str, own))}, which replaces it"
            + (f"; lost: {', '.join(lost)}" if lost else ""),
            "remove it: the reference model takes the actor's",
        )


def _given(facts: Facts) -> dict[str, object]:
    return {str(key): value for key, value in facts.below(OVERRIDE).items()}
