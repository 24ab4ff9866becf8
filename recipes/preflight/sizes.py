"""Sizes and lengths that do not fit together: what the linter's rules on them call a failure."""

from collections.abc import Iterator

from recipes.compose import Recipe, verl_defaults
from recipes.lint import lint_facts
from recipes.lint.facts import gather
from recipes.lint.rules import SIZES


def fitting(recipe: Recipe) -> Iterator[str]:
    """Sizes against devices, layers, heads and experts, samples against what they are dealt out to, lengths."""
    facts = gather(recipe.config, recipe.matrix, verl_defaults(recipe.matrix))
    for finding in lint_facts(facts, SIZES):
        if finding.level == "fail":
            yield f"{finding.message}; {finding.remedy}"
