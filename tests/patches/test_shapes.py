"""Edits of syntax trees: what they find, what they leave alone, what they say where they find something else."""

import libcst as cst
import pytest

from patches.patch import Drifted, NotNeeded
from patches.shapes import append, body, either, fingerprint, imports, only_where, parameter, replace, swap

SOURCE = '''"""A module."""
import a
from b import (  # why
    c,
)

class Worker:
    """Works."""

    def run(self, x,
            y):
        # before
        first(x,   y)   # after
        if x:
            second(
                "one", 'two',
            )
        return x  +  y
'''
EDITS = {
    "inserted before": replace("Worker.run", "first(x, y)", "guard(x)\n..."),
    "inserted after": replace("Worker.run", "first(x, y)", "...\nguard(x)"),
    "wrapped": replace("Worker.run", "second('one', 'two')", "with lock():\n    ..."),
    "replaced": replace("Worker.run", "first(x, y)", "other(x)"),
    "swapped": swap("Worker.run", "x + y", "(x - y)"),
    "appended": append("Worker", 'def stop(self):\n    """Stops."""'),
    "at the end": append("", "run()"),
    "imported": imports("import d"),
    "parameter": parameter("Worker.run", "z: int = 0"),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_edit_is_made_once_and_changes_nothing_else(name, newline):
    source = SOURCE.replace("\n", newline).encode()
    once = EDITS[name](cst.parse_module(source))
    again = cst.parse_module(once.bytes)
    assert EDITS[name](again) is again
    compile(once.bytes, name, "exec")
    new = once.bytes.decode().split(newline)
    assert "\r" not in "".join(new) or newline == "\n"
    kept = [line for line in source.decode().split(newline) if line.strip() in {part.strip() for part in new}]
    touched = {"wrapped": 0, "replaced": 1, "swapped": 1, "parameter": 1}.get(name, 0)
    assert len(kept) == len(source.decode().split(newline)) - touched
    assert not [line for line in new if line and not line.strip()], "blank lines stay blank"


def test_what_stood_round_a_replaced_statement_stays():
    assert "# before\n        guard(x)\n        first(x,   y)   # after" in _made("inserted before")
    assert "            with lock():\n                second(\n                    \"one\", 'two'," in _made("wrapped")


@pytest.mark.parametrize(
    "edit, message",
    [
        (replace("Worker.run", "third()", "..."), "expected 'third()' once in Worker.run, found nothing like it"),
        (replace("Worker.run", "first(x, z)", "..."), "found 'first(x,   y)   # after'"),
        (
            replace("Worker.walk", "first(x, y)", "..."),
            "expected one Worker.walk, found none; the nearest is Worker.run",
        ),
        (swap("Worker.run", "x + z", "x"), "expected 'x + z' 1 times in Worker.run, found it 0 times"),
        (append("Worker", "def run(self): ..."), "expected no run in Worker, found another one of that name"),
        (parameter("Worker.run", "y: int = 1"), "expected no parameter y, or y: int = 1, found y"),
        (body("Worker.run", "pass", "0" * 16), "expected the body of Worker.run with fingerprint 0000000000000000"),
        (either(swap("", "q", "r"), swap("", "s", "t")), "expected one of several shapes, found"),
    ],
)
def test_an_edit_that_finds_something_else_says_what(edit, message):
    with pytest.raises(Drifted) as raised:
        edit(cst.parse_module(SOURCE))
    assert message in str(raised.value)


def test_two_places_are_one_too_many():
    tree = cst.parse_module("def f():\n    a()\n    b()\n    a()\n")
    with pytest.raises(Drifted, match="found it 2 times"):
        replace("f", "a()", "c()")(tree)


def test_a_mended_upstream_needs_no_edit():
    tree = cst.parse_module(SOURCE)
    with pytest.raises(NotNeeded, match=r"Worker\.run has it: return x"):
        replace("Worker.run", "first(x, y)", "...", fixed="return x + y")(tree)
    with pytest.raises(NotNeeded, match="no hook"):
        only_where("Worker.run", "hook()", "no hook")(tree)
    assert only_where("Worker.run", "first(x, y)", "no hook")(tree) is None


def test_a_half_of_an_insertion_is_drift():
    tree = cst.parse_module("def f():\n    before()\n    a()\n")
    with pytest.raises(Drifted, match="a part of what the patch inserts"):
        replace("f", "a()", "before()\n...\nafter()")(tree)


def test_a_body_is_known_by_its_tokens_and_keeps_its_docstring():
    source = 'def f(x):\n    """Says."""\n    return g(x,\n        1)  # so\n'
    tree = cst.parse_module(source)
    digits = fingerprint(tree, "f")
    assert digits == fingerprint(cst.parse_module("def f(x):\n    return g(x, 1)\n"), "f")
    assert digits != fingerprint(cst.parse_module("def f(x):\n    return g(x, 2)\n"), "f")
    made = body("f", "return 3", digits)(tree)
    assert made.code == 'def f(x):\n    """Says."""\n\n    return 3\n'
    assert body("f", "return 3", digits)(made) is made


def _made(name: str) -> str:
    return EDITS[name](cst.parse_module(SOURCE)).code
