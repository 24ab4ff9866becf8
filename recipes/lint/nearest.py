"""The nearest sizes that pass, and the node counts that are legal: rules tried on variants of the recipe.

Rules are pure, so a variant costs microseconds and no formula is written twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from checks.findings import Finding
from recipes.lint.facts import SIZES, Facts
from recipes.lint.rule import Rule

REACH = 512  # how far from the size that fails values are tried
NODES = 512  # node counts that are tried


def advised(rule: Rule, finding: Finding, facts: Facts, rules: Sequence[Rule]) -> Finding:
    """The finding with the nearest sizes that pass added to its remedy."""
    judges = [one for one in rules if one.level == "fail" and (one.vary or one.layout)]
    standing = _broken(judges, facts)
    found = [text for name in rule.vary if (text := _around(name, facts, rule, judges, standing))]
    return replace(finding, remedy=f"{finding.remedy}; nearest that pass: {', '.join(found)}") if found else finding


def legal_nodes(facts: Facts, rules: Iterable[Rule], most: int = NODES) -> list[int]:
    """The node counts, up to `most`, at which no rule on the layout fails."""
    judges = [rule for rule in rules if rule.layout and rule.level == "fail"]
    variants = ((nodes, facts.with_value("nodes", nodes)) for nodes in range(1, most + 1))
    return [nodes for nodes, variant in variants if not any(_fails(rule, variant) for rule in judges)]


def _around(name: str, facts: Facts, rule: Rule, judges: Sequence[Rule], standing: set[str]) -> str:
    """The next smaller and the next larger value with which the rule passes and no other one starts to fail."""
    value = facts.size(name)
    if value is None:
        return ""
    below = _first(range(value - 1, max(0, value - REACH), -1), name, facts, rule, judges, standing)
    above = _first(range(value + 1, value + REACH), name, facts, rule, judges, standing)
    shown = " or ".join(str(one) for one in (below, above) if one is not None)
    return shown and f"{SIZES[name]} {shown}"


def _first(
    values: Iterable[int], name: str, facts: Facts, rule: Rule, judges: Sequence[Rule], standing: set[str]
) -> int | None:
    for value in values:
        variant = facts.with_value(name, value)
        if next(rule.findings(variant), None) is None and not _broken(judges, variant) - standing:
            return value
    return None


def _broken(rules: Iterable[Rule], facts: Facts) -> set[str]:
    return {rule.id for rule in rules if _fails(rule, facts)}


def _fails(rule: Rule, facts: Facts) -> bool:
    return next(rule.findings(facts), None) is not None
