"""`invoke lint`: what is wrong with a recipe, said in a second on a machine without NPUs, before any is booked."""

from collections.abc import Sequence
from dataclasses import dataclass

from checks.findings import Finding, worst_first
from errors import UserError
from recipes import keys
from recipes.compose import ADDED, PARENT, Recipe, judge, verl_defaults, verl_types
from recipes.lint.facts import Facts, gather
from recipes.lint.nearest import advised, legal_nodes
from recipes.lint.rule import Rule
from recipes.lint.rules import RULES

__all__ = ["Report", "lint", "lint_facts", "read"]


@dataclass(frozen=True)
class Report:
    """What linting a recipe gave."""

    recipe: str
    matrix: str
    nodes: int | None
    findings: list[Finding]  # worst first
    legal: list[int]  # node counts at which the sizes fit together

    @property
    def failed(self) -> bool:
        """Whether something must be fixed."""
        return any(finding.level == "fail" for finding in self.findings)


def lint(name: str, matrix: str | None = None, nodes: int = 0, settings: Sequence[str] = ()) -> Report:
    """Composes a recipe and judges it. UserError for bad arguments and for a file that does not compose."""
    facts, recipe, found = read(name, matrix, nodes, settings)
    findings = [*found, *lint_facts(facts)]
    return Report(recipe.name, facts.matrix, facts.size("nodes"), worst_first(findings), legal_nodes(facts, RULES))


def read(
    name: str, matrix: str | None = None, nodes: int = 0, settings: Sequence[str] = ()
) -> tuple[Facts, Recipe, list[Finding]]:
    """A recipe's facts, and what composing it already brought to light."""
    own = [*settings, *([f"trainer.nnodes={nodes}"] if nodes else [])]
    recipe, faults, refused = judge(name, own, matrix)
    if refused:
        raise UserError("\n".join(refused))
    defaults = verl_defaults(recipe.matrix)
    facts = gather(recipe.config, recipe.matrix, defaults)
    if own and not faults:  # the file is sound: what verl does not know was added by a setting, +KEY=VALUE
        faults = list(keys.faults(recipe.config, defaults, verl_types(recipe.matrix), ADDED.get(recipe.matrix, ())))
    if "actor_rollout_ref" not in facts.values:
        faults.append(f"{recipe.file}: defaults: expected {PARENT} or another recipe to inherit from, found none")
    return facts, recipe, [_key_finding(fault) for fault in faults]


def lint_facts(facts: Facts, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """The findings of the rules, in the order of their table."""
    found = []
    for rule in rules:
        for finding in rule.findings(facts):
            found.append(advised(rule, finding, facts, RULES) if rule.vary else finding)
    return found


def _key_finding(fault: str) -> Finding:
    """A mistake in the file's keys or in a setting, which composing has put into words."""
    place = fault.split(": expected", 1)[0]
    return Finding("keys", "fail", place.rsplit(": ", 1)[-1], fault, "correct the key or its value", "E1")
