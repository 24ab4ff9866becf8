"""Every finding is reproduced by a module of this folder, and what stands for a patch has the patch's name."""

import re
from pathlib import Path

import pytest

from checks import problems

HERE = Path(__file__).parent
NUMBERS = [*range(1, 19), 21, 22, 28]
ELSEWHERE = {"F29": HERE.parent / "recipes" / "lint" / "test_real_code.py"}  # where another folder's test shows it
# Seen when the stack was installed or on several hosts, read, or computed: see the row's source.
NOT_RUN_HERE = {"F19", "F20", "F23", "F24", "F25", "F26", "F27"}
PATCH = re.compile(r"\b(?:verl|mindspeed|vllm-ascend)/[a-z]+-[a-z0-9-]+")


def module(number: int) -> str:
    (path,) = HERE.glob(f"test_f{number:02}_*.py")
    return path.read_text()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_module_reproduces_it(number):
    text = module(number)
    assert text.startswith(f'"""F{number}: ')
    assert len(re.findall(r"^def test_", text, re.MULTILINE)) >= 2, "the fault, and the cure"


def test_every_finding_of_the_table_is_reproduced():
    findings = {problem for problem in problems.load() if problem.startswith("F")}
    assert findings - NOT_RUN_HERE <= {f"F{number}" for number in NUMBERS} | ELSEWHERE.keys()
    assert all(path.is_file() for path in ELSEWHERE.values())


@pytest.mark.parametrize("number", NUMBERS)
def test_patches_are_those_of_the_remedy(number):
    row = problems.load().get(f"F{number}")
    named = set(PATCH.findall(module(number)))
    assert not row or named <= set(PATCH.findall(row.remedy.en)), row.remedy.en
