"""`invoke data` and `invoke weights`, and the same before a training: makes what a recipe describes and is missing."""

import shlex
from pathlib import Path

from omegaconf import ListConfig, OmegaConf

from errors import UserError
from recipes import assets, command, emulated, keys
from recipes.compose import Recipe, compose


def data(name: str) -> int:
    """Makes the recipe's dataset or verifies the one that is there; the exit code."""
    recipe = compose(name)
    _make(recipe, assets.data(recipe.config), site=None)
    return 0


def weights(name: str) -> int:
    """Makes the recipe's weights in both layouts or verifies those that are there; the exit code."""
    recipe = compose(name)
    _make(recipe, assets.weights(recipe.config), site(recipe))
    return 0


def site(recipe: Recipe, build: bool = True) -> Path | None:
    """The folder that makes the emulated devices importable; None where the recipe runs on real ones.

    Without `build`: where it is or will be. UserError where the run's environment is no good for them.
    """
    if not emulated.is_emulated(recipe.config):
        return None
    faults = list(emulated.faults(recipe.config))
    if faults:
        raise UserError("\n".join(faults), code=1)
    from emulator import site

    try:
        return site.ensure() if build else site.folder()
    except (site.SiteError, site.build.BuildError) as error:
        raise UserError(str(error)) from error


def everything(recipe: Recipe, site: Path | None) -> None:
    """Makes what the recipe describes and uses; what it takes from elsewhere is left to the pre-flight check."""
    kinds = {"model": assets.weights, "data": assets.data}
    described = [of for kind, of in kinds.items() if OmegaConf.select(recipe.config, f"launch.{kind}") is not None]
    groups = [of(recipe.config) for of in described]
    paths = _paths(recipe)
    used = [group for group in groups if any(path.is_relative_to(one.folder) for path in paths for one in group)]
    _make(recipe, [asset for group in used for asset in group], site)


def _paths(recipe: Recipe) -> list[Path]:
    """What the keys of verl would be as paths: all their texts, those in lists too."""
    values = [
        OmegaConf.select(recipe.config, key) for key in keys.leaves(recipe.config) if key.split(".")[0] != "launch"
    ]
    texts = [text for value in values for text in (value if isinstance(value, ListConfig) else [value])]
    return [Path(text).absolute() for text in texts if isinstance(text, str)]


def _make(recipe: Recipe, wanted: list[assets.Asset], site: Path | None) -> None:
    environment = command.whole(command.added_environment(recipe.config, site, None, None))
    assets.make(wanted, shlex.quote(recipe.given), environment, lambda line: print(line, flush=True))
