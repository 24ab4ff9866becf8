"""Every signature finds its line through the whole of triage, and leaves a similar one alone."""

from pathlib import Path

import pytest
import yaml

from checks import literal, noise, problems
from checks.triage.diagnosis import diagnose
from checks.triage.reading import Log
from checks.triage.scan import scan

EXAMPLES = yaml.safe_load(Path(__file__).with_name("signatures.yaml").read_text(encoding="utf-8"))
TRACEBACK = "Traceback (most recent call last):"
CASES = [
    pytest.param(row, signature, example, id=f"{row.id}-{position}")
    for row in problems.load().values()
    for position, (signature, example) in enumerate(zip(row.signatures, EXAMPLES.get(row.id, []), strict=False))
]


def test_each_signature_has_an_example():
    wanted = {row.id: len(row.signatures) for row in problems.load().values() if row.signatures}
    assert {problem: len(examples) for problem, examples in EXAMPLES.items()} == wanted


def found(tmp_path, *lines):
    log = tmp_path / "log"
    log.write_text("\n".join(("some line before", *lines, "some line after")) + "\n", encoding="utf-8")
    return diagnose([scan(Log(str(log)))]).findings


@pytest.mark.parametrize(("row", "signature", "example"), CASES)
def test_a_signature(row, signature, example, tmp_path):
    above = [TRACEBACK, example["under"]] if "under" in example else []
    (finding,) = found(tmp_path, *above, example["match"])
    assert finding.problem.id == row.id
    assert finding.line == 2 + len(above)
    assert signature.pattern.search(example["match"]) and not signature.pattern.search(example["other"])
    assert not found(tmp_path, *above, example["other"])
    if above:  # the same line under another traceback, or none, is not this problem
        assert row.id not in {
            other.problem.id for other in found(tmp_path, TRACEBACK, "  in forward", example["match"])
        }
        assert row.id not in {other.problem.id for other in found(tmp_path, *above, TRACEBACK, example["match"])}


@pytest.mark.parametrize("row", noise.load(), ids=lambda row: row.line[:30])
def test_noise_is_never_reported(row, tmp_path):
    assert noise.is_noise(row.example)
    assert not found(tmp_path, row.example)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("abc", "abc"),
        (r"a\.b\(c", "a.b(c"),
        (r"ab*cde", "cde"),
        (r"abc?de", "ab"),
        (r"ab+cd", "ab"),
        (r"[Dd]o not \d+ it", "o not "),
        (r"x{0,2}abcd", "abcd"),
        (r"No module named 'vllm\.", "No module named 'vllm."),
        ("^start.*end$", "start"),
        (r"\w+", ""),
    ],
)
def test_the_text_in_every_match(pattern, text):
    assert literal.longest(pattern) == text
