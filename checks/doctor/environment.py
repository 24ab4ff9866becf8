"""The rules on environment variables that the linter has, on those of this shell and the recipe's over them."""

from collections.abc import Callable, Iterator

from checks import environment
from checks.doctor.check import NO_RECIPE, TABLE, Case, Check, Fault, Skip
from checks.words import LANGUAGES, Text, say

GIVEN = ("launch.env", "ray_kwargs.ray_init.runtime_env.env_vars")


def recipe_variables(case: Case) -> dict[str, str]:
    """The variables that the recipe gives a run."""
    found: dict[str, str] = {}
    for node in reversed(GIVEN):
        values = (case.settings or {}).get(node)
        if isinstance(values, dict):
            found |= {str(name): _text(value) for name, value in values.items() if value is not None}
    return found


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


class _NoRecipe(dict):
    """A recipe's values where none was named: a rule that asks for one has nothing to say."""

    def get(self, key: str, default: object = None) -> object:
        raise Skip(NO_RECIPE)


def _of(rule: environment.Rule) -> Callable[[Case], Iterator[Fault]]:
    """A rule on a case. Without a recipe, only what the shell does set is judged: the recipe may set the rest."""

    def body(case: Case) -> Iterator[Fault]:
        shell = {name: str(fact.value) for name, fact in case.facts.table("environment").items()}
        recipe = recipe_variables(case)
        values = _NoRecipe() if case.settings is None else case.settings
        for fault in rule(environment.Setting({**shell, **recipe}, values)):
            if case.settings is not None or fault.name in shell:
                name = fault.subject if fault.name in recipe else fault.name
                found = Text(*(f"{name}: {say(fault.found, language)}" for language in LANGUAGES))
                yield Fault(fault.expected, found, fault.remedy)

    return body


for _row in environment.ROWS:
    if _row.level != "note":
        TABLE.add(
            Check(f"environment.{_row.id}", _row.title, _of(_row.rule), _row.level, (), _row.matrices, _row.problem)
        )
