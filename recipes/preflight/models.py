"""The weights that a recipe starts from: Hugging Face's layout, its tokenizer, and Megatron's layout."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from recipes import checkpoints
from recipes.compose import Recipe
from recipes.preflight.advice import make_or_set

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def weights(recipe: Recipe) -> Iterator[str]:
    """The folder of the model: its config and, where there are any, weights that are whole."""
    config = recipe.config
    key = "actor_rollout_ref.model.path"
    folder = _folder(config, key)
    if folder is None:
        return
    if not folder.is_dir():
        yield f"{key}: expected a folder with config.json, found no {folder}; {make_or_set(recipe, 'weights', key)}"
        return
    yield from _config_faults(folder, recipe, key)
    files = sorted(folder.glob("*.safetensors"))
    yield from _missing_shards(folder, key)
    for file in files:
        if fault := safetensors_fault(file):
            yield f"{file}: expected whole safetensors, found {fault}; fetch or make the weights anew"
    if not files and not any(folder.glob("*.bin")) and not _from_megatron(config):
        yield f"{key}: expected weights (*.safetensors) in {folder}, found none; {make_or_set(recipe, 'weights', key)}"


def tokenizer(recipe: Recipe) -> Iterator[str]:
    """A tokenizer beside the model."""
    config = recipe.config
    key = "actor_rollout_ref.model.path"
    folder = _folder(config, key)
    if folder and folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZERS):
        names = " or ".join(TOKENIZERS)
        yield f"{key}: expected a tokenizer ({names}) in {folder}, found none; copy the model's own there"


def megatron(recipe: Recipe) -> Iterator[str]:
    """Megatron's checkpoints that the roles of the recipe load."""
    config = recipe.config
    reported = set()
    for role in _roles(config):
        key = f"{role}.megatron.dist_checkpointing_path"
        if not OmegaConf.select(config, f"{role}.megatron.use_dist_checkpointing"):
            continue
        given = OmegaConf.select(config, key)
        if given in reported:
            continue
        reported.add(given)
        if given is None:
            yield f"{key}: expected a folder, found null; set it, or use_dist_checkpointing to false"
        elif not Path(given).expanduser().is_dir():
            advice = make_or_set(recipe, "weights", key)
            yield f"{key}: expected a Megatron checkpoint, found no folder {given}; {advice}"
        else:
            for fault in checkpoints.distributed_faults(Path(given).expanduser()):
                yield f"{key}: expected a whole Megatron checkpoint, found that {fault}; convert the weights anew"


def safetensors_fault(file: Path) -> str | None:
    """What is wrong with a safetensors file, from its header and size alone; None when it is whole.

    The format: eight bytes with the header's length, a JSON header with each tensor's place, then the tensors.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > size - 8:
                return f"a file of {size} bytes that is cut off or is no safetensors"
            header = json.loads(opened.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "a damaged header"
    expected = 8 + length + max(ends, default=0)
    return None if size == expected else f"{size} bytes where the header says {expected}"


def bytes_of(config: DictConfig) -> int:
    """Size of the model's weight files; 0 where they cannot be found."""
    folder = _folder(config, "actor_rollout_ref.model.path")
    if folder is None or not folder.is_dir():
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _folder(config: DictConfig, key: str) -> Path | None:
    """The local folder that a key names; None for a remote address or a name on the model hub."""
    given = OmegaConf.select(config, key)
    if not isinstance(given, str) or "://" in given:
        return None
    path = Path(given).expanduser()
    return None if HUB_NAME.fullmatch(given) and not path.exists() and not path.parent.is_dir() else path


def _config_faults(folder: Path, recipe: Recipe, key: str) -> Iterator[str]:
    file = folder / "config.json"
    try:
        if "model_type" not in json.loads(file.read_text()):
            yield f"{file}: expected a model_type in it, found none; copy the model's own config.json"
    except FileNotFoundError:
        yield f"{key}: expected config.json in {folder}, found none; {make_or_set(recipe, 'weights', key)}"
    except OSError as error:
        yield f"{file}: expected to read it, found: {error.strerror}; change its permissions"
    except (ValueError, TypeError):
        yield f"{file}: expected a JSON object, found something else; copy the model's own config.json"


def _missing_shards(folder: Path, key: str) -> Iterator[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        yield f"{index}: expected a readable weight_map, found none; fetch or make the weights anew"
        return
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        yield (
            f"{key}: expected {len(names)} weight files in {folder}, found {len(missing)} missing "
            f"({missing[0]}, …); fetch or make the weights anew"
        )


def _from_megatron(config: DictConfig) -> bool:
    return bool(OmegaConf.select(config, "actor_rollout_ref.actor.megatron.use_dist_checkpointing"))


def _roles(config: DictConfig) -> Iterator[str]:
    yield "actor_rollout_ref.actor"
    if config.algorithm.use_kl_in_reward or OmegaConf.select(config, "actor_rollout_ref.actor.use_kl_loss"):
        yield "actor_rollout_ref.ref"
    if config.algorithm.adv_estimator == "gae":
        yield "critic"
