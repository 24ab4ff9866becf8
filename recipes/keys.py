"""The keys of a composed config: listing them, finding the nearest to a mistyped one, and those verl does not know."""

import difflib
from collections.abc import Iterable, Iterator, Mapping

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes import kinds

# Subtrees that take keys which their defaults do not list, and what reads them.
OPEN = {
    "launch.env": "environment variables of the run",
    "launch.rollout": "what recipes/stack writes where a matrix's verl reads it",
    "launch.model": "arguments of the toy model's config class",
    "launch.data": "arguments of the toy dataset",
    "ray_kwargs.ray_init": "arguments of ray.init",
    "custom_reward_function.reward_kwargs": "arguments of the reward function",
    "reward_model.reward_kwargs": "arguments of the reward manager",
    "data.apply_chat_template_kwargs": "arguments of the tokenizer's chat template",
    "actor_rollout_ref.rollout.engine_kwargs": "arguments of the rollout engine",
    "actor_rollout_ref.model.override_config": "fields of the Hugging Face config",
    "actor_rollout_ref.actor.megatron.override_transformer_config": "fields of Megatron's and MindSpeed's config",
    "actor_rollout_ref.actor.megatron.override_ddp_config": "fields of Megatron's data-parallel config",
    "actor_rollout_ref.ref.megatron.override_transformer_config": "fields of Megatron's and MindSpeed's config",
    "critic.megatron.override_transformer_config": "fields of Megatron's and MindSpeed's config",
    "critic.model.override_config": "fields of the Hugging Face config",
}


class _Absent:
    """In place of the value of a key that is not there."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()

# What `launch:` may hold; the rest of the tree is verl's.
LAUNCH = {
    "nodes": {"int"},
    "matrix": {"text"},
    "hardware": {"text"},
    "assets": {"text"},
    "model": {"mapping"},
    "data": {"mapping"},
    "env": {"mapping"},
    "rollout": {"mapping"},
}


def flatten(config: DictConfig) -> dict[str, object]:
    """Every key of the tree with its value, dotted, inner nodes included; interpolations stay as they are written."""
    return flattened(OmegaConf.to_container(config, resolve=False))


def flattened(tree: Mapping) -> dict[str, object]:
    """The same of a plain tree."""
    return dict(_walk(tree, ""))


def leaves(config: DictConfig) -> dict[str, object]:
    """The keys that hold a value or an empty mapping."""
    return {key: value for key, value in flatten(config).items() if not (isinstance(value, dict) and value)}


def changes(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Each key that differs, with its value before and now; ABSENT where it is not there."""
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key, ABSENT), now.get(key, ABSENT)
        if old != new:
            yield key, old, new


def nearest(key: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known keys that `key` was most likely meant to be, best first."""
    known = list(known)
    last = key.rsplit(".", 1)[-1]
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rsplit(".", 1)[-1], []).append(name)
    candidates = set(difflib.get_close_matches(key, known, n=count, cutoff=0.7))
    for name in difflib.get_close_matches(last, by_last, n=count, cutoff=0.75):
        candidates.update(by_last[name])

    def likeness(name: str) -> float:
        tail = difflib.SequenceMatcher(None, last, name.rsplit(".", 1)[-1]).ratio()
        return difflib.SequenceMatcher(None, key, name).ratio() + tail

    return sorted(candidates, key=lambda name: (-likeness(name), name))[:count]


def suggestion(key: str, known: Iterable[str]) -> str:
    """The end of a message on an unknown key."""
    near = nearest(key, known)
    return f"nearest keys: {', '.join(near)}" if near else "no key is like it"


def is_open(key: str) -> bool:
    """Whether the key lies in a subtree that takes keys beyond its defaults."""
    return any(key.startswith(name + ".") for name in OPEN)


def faults(
    config: DictConfig, defaults: DictConfig, types: Mapping[str, str], added: Iterable[str] = ()
) -> Iterator[str]:
    """What a recipe's file says that verl does not know, or with a value of the wrong type; a message each.

    `defaults` is verl's config without a recipe, `types` the annotations of its keys, `added` what else is read.
    """
    known, given = flatten(defaults), flatten(config)
    reported: list[str] = []
    for key, value in given.items():
        if key in added or any(key.startswith(parent + ".") for parent in reported):
            continue
        if key == "launch" or key.startswith("launch."):
            fault = launch_fault(key, value)
        elif is_open(key):
            fault = None
        elif key in OPEN and key not in known:
            fault = kinds.mismatch(key, value, {"mapping"})
        elif key not in known:
            fault = f"{key}: expected a key of verl, found none of that name; {suggestion(key, known)}"
        elif value == known[key] or (isinstance(value, dict) and isinstance(known[key], dict)):
            fault = None
        else:
            fault = kinds.fault(key, value, defaults, defaults, types)
        if fault:
            reported.append(key)
            yield fault


def missing(config: DictConfig, defaults: DictConfig) -> list[str]:
    """The keys of verl that a config lacks."""
    given = flatten(config)
    return [key for key in flatten(defaults) if key not in given and not is_open(key)]


def unresolved(config: DictConfig, defaults: DictConfig, types: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the interpolations that are not verl's own, and values that are still to be set (`???`)."""
    known = flatten(defaults)
    for key, value in flatten(config).items():
        if value != "???" and (not isinstance(value, str) or "${" not in value or value == known.get(key)):
            continue
        try:
            found = OmegaConf.select(config, key, throw_on_missing=True)
        except OmegaConfBaseException as error:
            yield f"{key}: expected a value, found {value}: {str(error).splitlines()[0]}; set it to another"
            continue
        if key == "launch" or key.startswith("launch."):
            fault = launch_fault(key, found)
        else:
            fault = None if is_open(key) else kinds.fault(key, found, defaults, defaults, types)
        if fault:
            yield f"{fault} ({value})"


def launch_fault(key: str, value: object) -> str | None:
    """What is wrong with a key of `launch`, or with its value."""
    name = key.removeprefix("launch.")
    if name == "launch":
        return kinds.mismatch(key, value, {"mapping"})
    if name.startswith("env."):
        return kinds.mismatch(key, value, {"text", "int", "float"})
    if is_open(key):
        return None
    if name not in LAUNCH:
        return f"{key}: expected one of {', '.join('launch.' + known for known in LAUNCH)}; found another key"
    return kinds.mismatch(key, value, LAUNCH[name])


def _walk(node: object, prefix: str) -> Iterator[tuple[str, object]]:
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        key = f"{prefix}{name}"
        yield key, value
        yield from _walk(value, key + ".")
