"""Whether the recipe's numbers divide one another as verl 0.6.0 and Megatron 0.12.1 need it (read in the sources)."""

import re
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from recipes import keys
from recipes.compose import Recipe
from recipes.preflight import models

# Named by their ends; verl's own dataclasses take any whole number. null stands for "not set" where it is allowed.
AT_LEAST_ONE = re.compile(
    r"trainer\.(nnodes|n_gpus_per_node|total_epochs|total_training_steps)"
    r"|.*(_parallel_size|batch_size|batch_size_per_gpu|max_token_len_per_gpu|ppo_epochs|max_num_seqs"
    r"|max_num_batched_tokens|\.n|\.(max_)?(prompt|response)_length)"
)


def positive(recipe: Recipe) -> Iterator[str]:
    """Sizes of which there must be at least one."""
    for key in filter(AT_LEAST_ONE.fullmatch, keys.leaves(recipe.config)):
        value = OmegaConf.select(recipe.config, key)
        if isinstance(value, int) and value < 1:
            yield f"{key}: expected at least 1, found {value}; set it to a number above 0"


def parallel(recipe: Recipe) -> Iterator[str]:
    """Devices against the parallel sizes of the actor and of the rollout, experts and layers against both."""
    config = recipe.config
    devices = world(config)
    key = "actor_rollout_ref.actor.megatron"
    tp, pp, cp = (
        _size(config, f"{key}.{name}_parallel_size") for name in ("tensor_model", "pipeline_model", "context")
    )
    ep, etp = (_size(config, f"{key}.expert_{name}_parallel_size") for name in ("model", "tensor"))
    yield from _divides(devices, tp * pp * cp, f"tp {tp} × pp {pp} × cp {cp} of {key}", "devices")
    yield from _divides(devices, etp * ep * pp, f"etp {etp} × ep {ep} × pp {pp} of {key}", "devices")
    rollout = _size(config, "actor_rollout_ref.rollout.tensor_model_parallel_size")
    yield from _divides(devices, rollout, "actor_rollout_ref.rollout.tensor_model_parallel_size", "devices")
    experts = models.hf_config(config).get("num_experts")
    if isinstance(experts, int):
        yield from _divides(experts, ep, f"{key}.expert_model_parallel_size {ep}", "experts")
    yield from _layers(config, pp)


def batches(recipe: Recipe) -> Iterator[str]:
    """Samples of a step against the devices: verl deals them out evenly and refuses a rest."""
    config = recipe.config
    prompts, samples = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
    total = f"data.train_batch_size {prompts} × actor_rollout_ref.rollout.n {samples}"
    if (prompts * samples) % world(config):
        yield (
            f"{total}: expected a multiple of the {world(config)} devices, found {prompts * samples}; "
            f"change one of the two, or trainer.n_gpus_per_node"
        )
    mini = config.actor_rollout_ref.actor.ppo_mini_batch_size
    if mini > prompts:
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size: expected at most data.train_batch_size, {prompts}, "
            f"found {mini}; lower it"
        )
    elif prompts % mini:
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size: expected a divisor of data.train_batch_size, {prompts}, "
            f"found {mini}; change one of the two"
        )


def world(config: DictConfig) -> int:
    """The number of devices of the run."""
    return config.trainer.n_gpus_per_node * config.trainer.nnodes


def _layers(config: DictConfig, pp: int) -> Iterator[str]:
    layers = models.hf_config(config).get("num_hidden_layers")
    override = "actor_rollout_ref.actor.megatron.override_transformer_config"
    uneven = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    if isinstance(layers, int) and all(OmegaConf.select(config, f"{override}.{name}") is None for name in uneven):
        yield from _divides(layers, pp, f"pipeline_model_parallel_size {pp}", "layers")


def _divides(total: int, part: int, what: str, unit: str) -> Iterator[str]:
    if part < 1 or total % part:
        yield f"{what}: expected a divisor of the {total} {unit}, found {part}; change the parallel sizes"


def _size(config: DictConfig, key: str) -> int:
    value = OmegaConf.select(config, key)
    return value if isinstance(value, int) else 1
