"""What rules look at: a composed recipe's values, flat and resolved, with the model's sizes and the matrix's commits.

Everything is typed on the way out: a rule asks for a size and gets a whole number of at least 1, or None where the
recipe has something else there (which `keys.type` and `sizes.positive` report).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from errors import UserError
from recipes import keys
from recipes.lint import dataset
from recipes.lint.models import Model
from recipes.lint.models import find as find_model

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
ENGINE = f"{ROLLOUT}.engine_kwargs.vllm"
OVERRIDE = f"{ACTOR}.megatron.override_transformer_config"

# Short names of the sizes that formulas are made of.
SIZES = {
    "nodes": "trainer.nnodes",
    "per_node": "trainer.n_gpus_per_node",
    "prompts": "data.train_batch_size",
    "samples": f"{ROLLOUT}.n",
    "mini": f"{ACTOR}.ppo_mini_batch_size",
    "micro": f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    "tp": f"{ACTOR}.megatron.tensor_model_parallel_size",
    "pp": f"{ACTOR}.megatron.pipeline_model_parallel_size",
    "cp": f"{ACTOR}.megatron.context_parallel_size",
    "ep": f"{ACTOR}.megatron.expert_model_parallel_size",
    "etp": f"{ACTOR}.megatron.expert_tensor_parallel_size",
    "vpp": f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size",
    "first": f"{OVERRIDE}.num_layers_in_first_pipeline_stage",
    "last": f"{OVERRIDE}.num_layers_in_last_pipeline_stage",
    "prompt": "data.max_prompt_length",
    "response": "data.max_response_length",
    "workers": f"{ROLLOUT}.agent.num_workers",
    "rollout_tp": f"{ROLLOUT}.tensor_model_parallel_size",
}

# The engine's data parallelism stands under another key at each of verl's commits.
ENGINE_DATA_PARALLEL = {
    "performance": f"{ROLLOUT}.data_parallel_size",
    "cpu": f"{ROLLOUT}.data_parallel_size",
    "commercial": f"{ROLLOUT}.dp_model_parallel_size",
}
REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")


@dataclass(frozen=True)
class Layout:
    """Megatron's parallel sizes. They need not fit together: that is what rules find out."""

    devices: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int

    @property
    def model(self) -> int:
        """Devices of one copy of the model."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Copies of the model; 0 where not even one fits."""
        return self.devices // self.model

    @property
    def edp(self) -> int:
        """Copies of an expert."""
        return self.devices // (self.etp * self.ep * self.pp)


@dataclass(frozen=True)
class Facts:
    """A composed recipe as rules see it."""

    matrix: str
    values: Mapping[str, object]  # dotted key to resolved value, inner nodes included
    written: Mapping[str, object]  # the same with interpolations as they are written
    inherited: Mapping[str, object] = field(default_factory=dict)  # verl's own config
    model: Model | None = None
    training_rows: int | None = None  # rows of the training files, where they can be read

    def get(self, key: str, default: object = None) -> object:
        """Any value; `default` where the key is not there."""
        return self.values.get(key, default)

    def shown(self, key: str) -> str:
        """A value as a recipe writes it, for messages; `none` where the key is not there."""
        return json.dumps(self.values[key], default=str, ensure_ascii=False) if key in self.values else "none"

    def size(self, name: str) -> int | None:
        """A size by its short name (see SIZES) or its key: at least 1, else None."""
        value = self.values.get(SIZES.get(name, name))
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None

    def sizes(self, *names: str) -> tuple[int, ...] | None:
        """Several sizes, or None where one of them is missing."""
        found = tuple(self.size(name) for name in names)
        return None if None in found else found

    def is_on(self, key: str) -> bool:
        """Whether a switch is on; anything but true counts as off."""
        return self.values.get(key) is True

    def below(self, prefix: str) -> dict[str, object]:
        """The direct children of a node."""
        found = self.values.get(prefix)
        return found if isinstance(found, dict) else {}

    @cached_property
    def env(self) -> dict[str, str]:
        """Environment variables of the run: the launcher's, then those handed to Ray."""
        ray = "ray_kwargs.ray_init.runtime_env.env_vars"
        given = {**self.below(ray), **self.below("launch.env")}
        return {str(name): _text(value) for name, value in given.items() if value is not None}

    @cached_property
    def layout(self) -> Layout | None:
        """Megatron's parallel sizes, expert_tensor_parallel_size resolved as Megatron does (null is TP)."""
        found = self.sizes("nodes", "per_node", "tp", "pp", "cp", "ep")
        if found is None:
            return None
        nodes, per_node, tp, pp, cp, ep = found
        etp = tp if self.get(SIZES["etp"]) is None else self.size("etp")
        return None if etp is None else Layout(nodes * per_node, tp, pp, cp, ep, etp)

    @cached_property
    def rows(self) -> int | None:
        """Samples of a training step."""
        found = self.sizes("prompts", "samples")
        return found and found[0] * found[1]

    @cached_property
    def width(self) -> int | None:
        """Tokens of a padded sequence."""
        found = self.sizes("prompt", "response")
        return found and sum(found)

    @cached_property
    def engine_dp(self) -> int:
        """Data parallelism inside one rollout engine."""
        return self.size(ENGINE_DATA_PARALLEL.get(self.matrix, "")) or 1

    @cached_property
    def engine(self) -> int | None:
        """Devices of one rollout engine as verl's mesh has it: samples are dealt out to engines."""
        tp = self.size("rollout_tp")
        if tp is None or self.matrix == "commercial":  # its mesh knows tensor parallelism only
            return tp
        return tp * self.engine_dp * (self.size(f"{ROLLOUT}.pipeline_model_parallel_size") or 1)

    @cached_property
    def spreads_experts(self) -> bool:
        """Whether the rollout's expert parallelism is switched on; on a single device, too."""
        node = ROLLOUT if self.matrix == "commercial" else ENGINE
        on = self.is_on(f"{node}.enable_expert_parallel")
        return on or (self.mode == "async" and (self.size(f"{ROLLOUT}.expert_parallel_size") or 1) > 1)

    @cached_property
    def engine_ep(self) -> int:
        """Expert parallelism of the rollout: all devices of the engine, or 1 where it is off."""
        return (self.size("rollout_tp") or 1) * self.engine_dp if self.spreads_experts else 1

    @property
    def mode(self) -> object:
        """`sync` or `async`."""
        return self.get(f"{ROLLOUT}.mode")

    @property
    def graphs(self) -> bool:
        """Whether rollouts are to be captured."""
        return self.get(f"{ROLLOUT}.enforce_eager") is False

    @property
    def has_reference(self) -> bool:
        """Whether the run has a reference model (verl, trainer/ppo/utils.py need_reference_policy)."""
        return self.is_on(f"{ACTOR}.use_kl_loss") or self.is_on("algorithm.use_kl_in_reward")

    def with_value(self, key: str, value: object) -> Self:
        """The same recipe with another value, also where other keys refer to this one."""
        key = SIZES.get(key, key)
        changed = dict.fromkeys({key, *self._referring(key)}, value)
        return replace(self, values={**self.values, **changed})

    def _referring(self, key: str) -> set[str]:
        """The keys whose value is this one's, directly or through others."""
        found: set[str] = set()
        waiting = [key]
        while waiting:
            for name in self._referrers.get(waiting.pop(), ()):
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return found

    @cached_property
    def _referrers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key, value in self.written.items():
            if isinstance(value, str) and (match := REFERENCE.fullmatch(value)):
                found.setdefault(_absolute(key, *match.groups()), []).append(key)
        return found


def gather(config: DictConfig, matrix: str, defaults: DictConfig) -> Facts:
    """The facts of a composed recipe. UserError where an interpolation leads nowhere."""
    written = keys.flatten(config)
    try:
        resolved = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "the recipe"
        first = str(error).strip().splitlines()[0]
        raise UserError(f"{key}: expected an interpolation that leads to a value, found: {first}; correct it") from None
    values = keys.flattened(resolved)
    return Facts(matrix, values, written, keys.flatten(defaults), find_model(values), dataset.rows(values))


def _absolute(key: str, dots: str, name: str) -> str:
    """What `${..name}` in `key` refers to."""
    if not dots:
        return name
    parents = key.split(".")[: -len(dots)]
    return ".".join([*parents, name])


def _text(value: object) -> str:
    """A value as an environment variable shows it."""
    return str(int(value)) if isinstance(value, bool) else str(value)
