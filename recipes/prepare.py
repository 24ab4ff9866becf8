"""`invoke data` and `invoke weights`, and the same before a training: makes what a recipe describes and is missing."""

from pathlib import Path

from omegaconf import OmegaConf

from errors import UserError
from recipes import assets, command
from recipes.compose import Recipe, compose

EMULATED = "emulated"


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

    Without `build`: where it is or will be.
    """
    if OmegaConf.select(recipe.config, "launch.hardware") != EMULATED:
        return None
    from emulator import site

    try:
        return site.ensure() if build else site.folder()
    except (site.SiteError, site.build.BuildError) as error:
        raise UserError(str(error)) from error


def everything(recipe: Recipe, site: Path | None) -> None:
    """Makes whatever the recipe describes; what it takes from elsewhere is left to the pre-flight check."""
    kinds = {"model": assets.weights, "data": assets.data}
    described = [of for kind, of in kinds.items() if OmegaConf.select(recipe.config, f"launch.{kind}") is not None]
    _make(recipe, [asset for of in described for asset in of(recipe.config)], site)


def _make(recipe: Recipe, wanted: list[assets.Asset], site: Path | None) -> None:
    environment = command.whole(command.added_environment(recipe.config, site, None, None))
    assets.make(wanted, recipe.name, environment, lambda line: print(line, flush=True))
