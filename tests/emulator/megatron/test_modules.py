"""The stand-in's modules one by one, in one process with one emulated NPU: the checks of modules.py."""

import ast
import json

import pytest

from tests.emulator.megatron.conftest import HERE, launch

CHECKS = [
    node.name
    for node in ast.parse((HERE / "modules.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Check -> "" or what went wrong."""
    path = tmp_path_factory.mktemp("modules") / "results.json"
    launch("modules.py", path)
    return json.loads(path.read_text())


@pytest.mark.parametrize("check", CHECKS)
def test_module(results, check):
    assert results[check] == "", results[check]
