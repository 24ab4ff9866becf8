"""The table of known problems: every row can be found by something that there is, and is shown in both languages."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from checks import listing, literal, problems
from errors import UserError
from patches import catalogue
from recipes.lint.rules import RULES
from tests.test_tasks import ROOT

ROWS = list(problems.load().values())
SOURCE_DOCUMENT = {f"S{number}" for number in range(1, 11)}
FINDINGS = {f"F{number}" for number in range(1, 30)}


def test_the_table_has_what_it_must():
    ids = set(problems.load())
    assert ids >= SOURCE_DOCUMENT | FINDINGS
    assert len(ids) >= len(SOURCE_DOCUMENT | FINDINGS) + 12 + 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_can_be_reached(row):
    assert listing.means(row), "neither a check nor a lint rule, a patch, a signature or a metric finds it"
    assert re.search(r"[\u4e00-\u9fff]", row.title.zh + row.cause.zh + row.remedy.zh)
    assert not any(re.search(r"[\u4e00-\u9fff]", text) for text in (row.title.en, row.cause.en, row.remedy.en))


def test_no_problem_stands_there_twice():
    for texts in ([row.title.en for row in ROWS], [row.title.zh for row in ROWS]):
        assert len(set(texts)) == len(texts)
    every = [(one.line, one.frame) for row in ROWS for one in row.signatures]
    assert len(set(every)) == len(every)


def test_lint_rules_and_patches_are_those_of_the_rows():
    """Each names the row it is for, and that row names it; a row may name further ones."""
    for wanted, named in (
        ({(rule.problem, rule.id) for rule in RULES}, {(row.id, rule) for row in ROWS for rule in row.rules}),
        ({(p.problem, p.id) for p in catalogue.every() if p.problem}, {(r.id, p) for r in ROWS for p in r.patches}),
    ):
        assert wanted <= named
    assert {rule for row in ROWS for rule in row.rules} == {rule.id for rule in RULES}
    assert {patch for row in ROWS for patch in row.patches} == {patch.id for patch in catalogue.every()}


@pytest.mark.skipif(not importlib.util.find_spec("checks.doctor"), reason="there is no checks/doctor")
def test_checks_of_the_doctor_are_those_of_the_rows():
    from checks.doctor.registry import CHECKS

    named = {(row.id, check) for row in ROWS for check in row.checks}
    assert {(check.problem, check.id) for check in CHECKS if check.problem} <= named
    assert {check for _, check in named} <= {check.id for check in CHECKS}


def test_a_signature_has_no_alternatives_and_a_literal_to_look_for():
    for signature, problem in problems.signatures():
        for pattern in filter(None, (signature.line, signature.frame)):
            assert not re.search(r"(?<!\\)[(|]", re.sub(r"\[[^]]*\]", "", pattern)), problem.id
            assert len(literal.longest(pattern)) >= 4, problem.id


def test_conditions_and_settings_can_be_read():
    for row in ROWS:
        assert all(re.fullmatch(r"[\w.+]+ (=|!=|<|>) \S+", condition) for condition in row.applies_if), row.id
        assert all(re.fullmatch(r"\+?[\w.]+", key) for key in row.settings), row.id


def test_the_cause_comes_before_what_follows_from_it():
    lines = ["EI0002: a rank waits", "NPU out of memory. Tried to allocate 2.00 GiB", "Connection reset by peer"]
    assert problems.matching(lines)[0].id == "D1"
    assert problems.matching(["all is well"]) is None
    assert problems.matching(["Failed to import from vllm._C with ImportError(\"No module named 'vllm._C'\")"]) is None
    assert problems.matching(["cudagraph_capture_sizes must be a list, but got [1]"]) is None, "only a warning"


def invokew(*arguments):
    command = [sys.executable, str(ROOT / "cli.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_rows_are_listed_and_shown():
    assert [row["id"] for row in json.loads(invokew("problems", "--json").stdout)] == list(problems.load())
    shown = invokew("problems", "f3", "--lang", "zh").stdout
    assert problems.get("F3").remedy.zh in shown and "enable_prefix_caching=false" in shown
    assert json.loads(invokew("problems", "--json", "G2").stdout)["id"] == "G2"


def test_bad_arguments_are_refused():
    refused = invokew("problems", "F999")
    assert refused.returncode == 2 and "expected a problem's id" in refused.stderr
    with pytest.raises(UserError, match="expected one of en, zh"):
        listing.show("", False, "fr")


def test_the_list_has_every_row(capsys):
    for language in listing.LANGUAGES:
        listing.show("", False, language)
        shown = capsys.readouterr().out
        assert all(f"{row.id} " in shown for row in ROWS)
        for row in ROWS:
            listing.show(row.id, False, language)
            assert row.remedy.said(language) in capsys.readouterr().out


@pytest.mark.parametrize("language", listing.READMES)
def test_the_readme_has_the_table_as_it_is(language):
    text = (ROOT / listing.READMES[language]).read_text(encoding="utf-8")
    assert listing.filled(text, language) == text, "run python -m checks.listing"


def test_a_readme_without_marks_is_refused():
    with pytest.raises(UserError, match="found none"):
        listing.filled("# nothing", "en")
