"""What to change in the recipe of a run, for a known problem: the row's settings against the run's own."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from checks import conditions
from checks.problems import Problem
from checks.rows import Text
from errors import UserError

CONFIG = "config.yaml"


def recipe_of(folder: Path) -> DictConfig | None:
    """The composed recipe of a run directory; None where the folder holds none. UserError where it cannot be read."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    try:
        config = OmegaConf.load(path)
    except Exception as error:  # whatever YAML and OmegaConf raise
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"{path}: expected a run's recipe, found: {first}; name the log itself") from None
    return config if isinstance(config, DictConfig) else None


def changes(problem: Problem, config: DictConfig) -> list[Text]:
    """The settings that remove the problem, with what they are in this recipe; and which conditions do not hold."""
    found = []
    for condition in problem.applies_if:
        if not conditions.holds(config, condition):
            found.append(_text(f"this recipe does not have {condition}", f"该配方不满足 {condition}"))
    for key, wanted in problem.settings.items():
        given = conditions.value(config, key)
        name, now, then = key.lstrip("+"), conditions.shown(given), conditions.shown(wanted)
        if given is not None and now == then:
            found.append(_text(f"{name} is {now} already", f"{name} 已经是 {now}"))
            continue
        setting = (
            f"--set {'+' if given is None and (key[0] == '+' or name.startswith('launch.env.')) else ''}{name}={then}"
        )
        found.append(_text(f"{setting}  (now {now})", f"{setting}  （当前为 {now}）"))
    return found


def _text(english: str, chinese: str) -> Text:
    return Text(en=english, zh=chinese)
