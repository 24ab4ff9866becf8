"""The stand-in's modules one by one, in one process with one emulated NPU: the checks of modules.py."""

import ast
import json

import pytest

from tests.emulator.megatron.conftest import HERE, launch
from tests.emulator.processes import run

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


@pytest.mark.parametrize("first", ["torch", "megatron.core"])
def test_whatever_is_imported_first(first):
    """megatron.core may be what imports torch, and so the emulator: it is half imported then."""
    done = run(f"""
import {first}
from megatron.core.extensions import transformer_engine
from megatron.core.models.common.embeddings import rope_utils
print(transformer_engine.__file__, rope_utils.fused_apply_rotary_pos_emb_thd.__module__)
""")
    assert "extension.py npu_transformer_engine.rotary" in done.stdout


def test_installed_too_late_is_an_error():
    done = run(
        """
import sys
import torch
sys.modules["megatron.core.transformer.moe.moe_utils"] = sys
from npu_transformer_engine.install import install
install()
""",
        check=False,
    )
    assert done.returncode == 1
    assert "must come before megatron.core.transformer.moe.moe_utils is imported" in done.stderr
