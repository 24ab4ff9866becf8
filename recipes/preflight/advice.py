"""What to do about a missing file, where the project may be able to make it."""

import shlex

from omegaconf import OmegaConf

from recipes.compose import Recipe

DESCRIBED = {"weights": "launch.model", "data": "launch.data"}  # a verb that makes files, and the key that says what


def make_or_set(recipe: Recipe, verb: str, key: str) -> str:
    """The verb, where the recipe describes what it would make, or the key to set."""
    setting = f"set {key} to the right place"
    if OmegaConf.select(recipe.config, DESCRIBED[verb]) is None:
        return setting
    return f"run `invoke {verb} --recipe {shlex.quote(recipe.given)}`, or {setting}"
