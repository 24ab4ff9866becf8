"""A production recipe in miniature: the same switches and environment, sizes that a laptop's emulated devices bear.

Each size follows one rule, which is stated beside the change. What divides in production divides here, and what is
above one stays above one. What no rule can keep is listed in `UNPROVEN`: a rehearsal says nothing about it.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from errors import UserError
from recipes import keys
from recipes.compose import HOME
from recipes.lint.facts import ACTOR, ENGINE, ENGINE_DATA_PARALLEL, OVERRIDE, REF, ROLLOUT, SIZES, Facts

RANKS = 8  # processes that a laptop bears
STEPS = 2
PROMPT, RESPONSE = 32, 32  # tokens; the toy's questions take 27 of the former
SEQUENCES = 8  # that a rollout engine runs at once
BLOCKS = 64  # of KV cache, 128 tokens each
EXPERTS = 8
HIDDEN, EXPERT_WIDTHS = 64, (48, 40)  # the first width that vllm-ascend's guess of the layout does not confuse (F10)

NAMES = ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor", "virtual_pipeline_model")
PARALLEL = (
    *(f"{role}.megatron.{name}_parallel_size" for role in (ACTOR, REF) for name in NAMES),
    SIZES["rollout_tp"],
    "launch.rollout.data_parallel",
    *dict.fromkeys(ENGINE_DATA_PARALLEL.values()),
    f"{ROLLOUT}.expert_parallel_size",
)
# Token budgets of an NPU, and the role by whose cp they are multiplied.
BUDGETS = {
    f"{ACTOR}.ppo_max_token_len_per_gpu": ACTOR,
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": ACTOR,
    f"{REF}.log_prob_max_token_len_per_gpu": REF,
}
# For the emulated devices, and against tools that would look for a network.
ENVIRONMENT = {
    "NPU_EMULATOR_MEMORY_GIB": 2,
    "NPU_EMULATOR_POISON": "freed",
    "NPU_EMULATOR_RACES": "warn",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": 1,
    "HF_HUB_OFFLINE": 1,
    "OMP_NUM_THREADS": 1,
}
UNPROVEN = (
    "memory: what fits a device is arithmetic (`invoke lint`), not a rehearsal",
    "kernels: their numerics, speed and limits; HCCL between nodes; time-outs",
    "parallel sizes above 2, and what depends on them, such as key-value heads that tensor ranks share",
    "the real weights, data and reward: a random toy model, sums of digits and a toy reward stand for them",
)

Rules = Iterator[tuple[str, object, str]]  # key, value in miniature, why


@dataclass(frozen=True)
class Change:
    """A key that has another value in miniature, and why."""

    key: str
    before: object
    after: object
    why: str


def shrink(config: DictConfig, facts: Facts, stack: str) -> tuple[DictConfig, list[Change]]:
    """The miniature of a composed recipe with these facts, and what was changed.

    `stack` names the software that it will run on: assets that it made are kept apart from others'. UserError where
    the sizes are not known or do not fit.
    """
    small = config.copy()
    OmegaConf.set_struct(small, False)
    reasons = {}
    for rules in (_parallel(facts), _model(facts), _lengths(facts), _batch(facts), _rollout(facts), _run(facts)):
        for key, value, why in rules:
            if OmegaConf.select(small, key) != value and not _follows(small, key):
                OmegaConf.update(small, key, value, force_add=True)
                reasons[key] = why
    assets = OmegaConf.to_container(small.launch.model), OmegaConf.to_container(small.launch.data), stack
    name = hashlib.sha256(json.dumps(assets, sort_keys=True).encode()).hexdigest()[:8]
    small.launch.assets = str(HOME / "assets" / f"rehearsal-{name}")
    reasons["launch.assets"] = "made here, for this software"
    before = keys.leaves(config)
    return small, [Change(key, before.get(key, keys.ABSENT), _at(small, key), why) for key, why in reasons.items()]


def devices(facts: Facts) -> int:
    """How many devices the miniature takes: one copy of the model, two where production has more and they fit."""
    layout = facts.layout
    if layout is None or layout.dp < 1:
        raise UserError("expected parallel sizes that fit the devices, found others; `invoke lint` says which")
    tp, pp, cp, ep, etp = (min(size, 2) for size in (layout.tp, layout.pp, layout.cp, layout.ep, layout.etp))
    engine = min(facts.size("rollout_tp") or 1, 2) * min(facts.engine_dp, 2)
    least = math.lcm(tp * pp * cp, ep * etp * pp, engine)
    if least > RANKS:
        raise UserError(
            f"expected at most {RANKS} devices, found {least}, which is least for tp {tp} × pp {pp} × cp {cp}, "
            f"ep {ep} × etp {etp} × pp {pp} and an engine of {engine}; set one of the sizes to 1 with --set"
        )
    return 2 * least if 2 * least <= RANKS and layout.devices > least and layout.dp > least // (tp * pp * cp) else least


def stages(facts: Facts) -> list[int]:
    """Layers of each pipeline stage: 2, but 1 in the end stage whose number the recipe gives: uneven, as there."""
    pp = min(facts.size("pp") or 1, 2)
    each = 2 * min(facts.size("vpp") or 1, 2)
    layers = [each] * pp
    if pp > 1 and (facts.size("first") or facts.size("last")):
        layers[0 if facts.size("first") else -1] = 1
    return layers


def _parallel(facts: Facts) -> Rules:
    why = "parallel sizes above 1 become 2"
    own = (f"{OVERRIDE}.{name}" for name in facts.below(OVERRIDE) if str(name).endswith("parallel_size"))
    for key in (*PARALLEL, *own):
        if (facts.size(key) or 1) > 1:
            yield key, 2, why
    world = devices(facts)
    yield "trainer.nnodes", 1, "one machine"
    yield "trainer.n_gpus_per_node", world, f"at most {RANKS} processes; two copies of the model where they fit"


def _model(facts: Facts) -> Rules:
    model = facts.model
    if model is None or not model.experts:
        found = "a dense one" if model else "none"
        raise UserError(
            f"actor_rollout_ref.model.path: expected a Qwen3-MoE whose sizes are known, to make a small one of its "
            f"architecture, found {found}; put its config.json there, or describe the model under launch.model"
        )
    layers = stages(facts)
    if len(layers) > 1:
        for name, count in (("first", layers[0]), ("last", None if facts.size("first") else layers[-1])):
            if facts.size(name):
                yield SIZES[name], count, "uneven stages stay uneven; with both of two given Megatron divides by none"
    rows = HIDDEN // 2, HIDDEN
    width = next(width for width in EXPERT_WIDTHS if width not in rows and width // 2 not in rows)
    sizes = {
        "vocab_size": 320,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "moe_intermediate_size": width,
        "num_hidden_layers": sum(layers),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": model.head_dim,  # kernels are chosen by it
        "num_experts": EXPERTS,
        # so that each of two ranks has rows of every token, as one of sixteen has of a production batch (F21)
        "num_experts_per_tok": min(model.active, EXPERTS // 2 + 1),
        "initializer_range": 0.1,  # at 0.02 attention hardly moves the answers, and a wrong one would not show
    }
    if not model.qk_norm:
        sizes["qk_norm"] = False
    yield (
        "launch.model",
        sizes,
        "a toy of the same architecture; widths that vllm-ascend's reload does not confuse (F10)",
    )
    yield "actor_rollout_ref.model.path", "${launch.assets}/model", "the toy's weights"
    for role in (ACTOR, REF):
        if facts.is_on(f"{role}.megatron.use_dist_checkpointing"):
            yield f"{role}.megatron.dist_checkpointing_path", "${launch.assets}/megatron", "the toy's weights"
    yield f"{ACTOR}.optim.lr", 1.0e-3, "one step has to move the weights visibly"


def _lengths(facts: Facts) -> Rules:
    width, small = facts.width, PROMPT + RESPONSE
    if width is None:
        raise UserError("data.max_prompt_length, data.max_response_length: expected numbers, found none; set them")
    yield SIZES["prompt"], PROMPT, "short questions"
    yield SIZES["response"], RESPONSE, "short answers"
    why = "token budgets keep their ratio to the sequence, cp included"
    for key, role in BUDGETS.items():
        budget, cp = facts.size(key), facts.size(f"{role}.megatron.context_parallel_size") or 1
        if budget:
            yield key, math.ceil(small * budget * cp / width / min(cp, 2)), why
    for key in (f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.max_model_len"):
        if tokens := facts.size(key):
            yield key, max(SEQUENCES, math.ceil(small * tokens / width)), why


def _batch(facts: Facts) -> Rules:
    found = facts.sizes("prompts", "samples", "mini")
    if found is None:
        raise UserError(
            "the batch: expected prompts, samples and a mini-batch as numbers, found none; see `invoke lint`"
        )
    prompts, samples, mini = found
    world = devices(facts)
    updates = min(2, max(1, prompts // mini))
    why = "a prompt a device, few samples: all divisors of production still divide"
    yield SIZES["prompts"], world, why
    yield SIZES["samples"], min(samples, 4), why
    yield SIZES["mini"], world // updates, "as many updates a step, but at most 2"
    for key in (
        SIZES["micro"],
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        f"{REF}.log_prob_micro_batch_size_per_gpu",
    ):
        if size := facts.size(key):
            yield key, min(size, 2), "micro-batches of at most 2"
    yield "launch.data", {"train": world * STEPS, "val": world}, "sums of two digits, as many as two steps take"
    for key, split in (("data.train_files", "train"), ("data.val_files", "val")):
        yield key, f"${{launch.assets}}/data/{split}.parquet", "the toy's data"
    yield "data.dataloader_num_workers", 0, "no processes for a few rows"
    yield "custom_reward_function.path", str(HOME / "recipes" / "rewards" / "digits.py"), "a reward for the toy"
    yield "custom_reward_function.name", "compute_score", "a reward for the toy"


def _rollout(facts: Facts) -> Rules:
    yield f"{ROLLOUT}.max_num_seqs", SEQUENCES, "few sequences"
    yield f"{ROLLOUT}.calculate_log_probs", True, "to compare the rollout with the trainer"
    sizes = [1, 2, 4, SEQUENCES]
    for key in ("launch.rollout.capture_sizes", f"{ENGINE}.compilation_config.cudagraph_capture_sizes"):
        if facts.get(key):
            yield key, sizes, f"up to the {SEQUENCES} sequences"
    if facts.matrix != "commercial":  # its stand-in has no blocks
        yield f"{ENGINE}.num_gpu_blocks_override", BLOCKS, "KV cache that a laptop holds"
    if workers := facts.size("workers"):
        yield SIZES["workers"], min(workers, 2), "few processes"


def _run(facts: Facts) -> Rules:
    yield "launch.hardware", "emulated", "no NPU needed"
    for name, value in ENVIRONMENT.items():
        if name not in facts.env:  # the user's own stay
            yield f"launch.env.{name}", value, "emulated devices, no network"
    if _absent_preload(facts.env.get("LD_PRELOAD", "")):
        yield "launch.env.LD_PRELOAD", "", "not on this machine"
    yield "trainer.total_training_steps", STEPS, "two steps"
    yield "trainer.total_epochs", 1, "two steps"
    yield "trainer.save_freq", 1, "to resume from the first step"
    yield "trainer.max_actor_ckpt_to_keep", None, "to resume from the first step"
    yield "trainer.resume_mode", "disable", "the first run starts anew"
    yield "trainer.test_freq", -1, "no validation"
    yield "trainer.val_before_train", False, "no validation"
    yield "trainer.logger", ["console"], "no accounts elsewhere"
    cores = 2 * devices(facts) + 4
    if facts.matrix == "commercial":
        yield "ray_init.num_cpus", cores, "actors, not cores"
    else:
        yield "ray_kwargs.ray_init.num_cpus", cores, "actors, not cores"
        yield "ray_kwargs.ray_init.include_dashboard", False, "nobody looks at it"
        yield "ray_kwargs.ray_init.object_store_memory", 200_000_000, "bytes; little data"


def _absent_preload(value: str) -> bool:
    return bool(value) and not all(Path(part).is_file() for part in value.replace(":", " ").split())


def _follows(config: DictConfig, key: str) -> bool:
    """Whether a key's value is another key's, and so changes with it."""
    parent, _, last = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return (
        isinstance(node, DictConfig)
        and last in node
        and OmegaConf.is_interpolation(node, last)
        and "${launch" not in str(node._get_node(last)._value())
    )


def _at(config: DictConfig, key: str) -> object:
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
