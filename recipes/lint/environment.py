"""Environment variables of the run against each other and against the recipe: the rules of `checks.environment`, which
the doctor shares.
"""

import functools
from collections.abc import Callable, Iterator

from checks import environment
from checks.words import say
from recipes.lint.facts import Facts
from recipes.lint.rule import Fault, Rule


def _of(rule: environment.Rule) -> Callable[[Facts], Iterator[Fault]]:
    """A rule on a recipe's facts."""

    @functools.wraps(rule)
    def check(facts: Facts) -> Iterator[Fault]:
        for fault in rule(environment.Setting(facts.env, facts.values)):
            shown = f"{fault.name}: expected {say(fault.expected)}, found {say(fault.found)}"
            yield Fault(fault.subject, shown, say(fault.remedy))

    return check


RULES = tuple(
    Rule(f"environment.{row.id}", _of(row.rule), row.problem, row.level, row.matrices) for row in environment.ROWS
)
