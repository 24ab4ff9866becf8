"""What each patch of vllm-ascend is worth, on the installed 0.11.0rc1 where it still has the fault."""

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

from tests.patches.upstream_code import apply, definition

MOE = "vllm_ascend.ops.common_fused_moe"
RUNNER = "vllm_ascend.worker.model_runner_v1"
RUNNER_TEXT = """
class NPUModelRunner:
    def _prepare_inputs(self, num_reqs, num_scheduled_tokens, num_valid_tokens):
        # Get the attention state.
        attn_state = self._build_attn_state(num_reqs, num_scheduled_tokens,
                                            num_valid_tokens)
        self.seq_lens_np[:num_reqs] = (
            self.input_batch.num_computed_tokens_cpu[:num_reqs] +
            num_scheduled_tokens)
        return attn_state
"""


class Method:
    """Of an unquantized layer: it transposes once, when the weights have been loaded (common_fused_moe.py:62-88)."""

    transpose = True


@pytest.mark.parametrize("hidden, width", [(64, 32), (64, 64), (64, 48), (32, 64)])
@pytest.mark.parametrize("tp", [1, 2])
def test_reloaded_experts_are_what_was_loaded(installed, hidden, width, tp):
    """w1, w3 [width, hidden] and w2 [hidden, width] of one expert, before and after the layout is transposed."""
    root = installed(MOE)
    gate, up, down = (torch.randn(width, hidden), torch.randn(width, hidden), torch.randn(hidden, width))
    results = []
    for patched in (False, True):
        if patched:
            apply("vllm-ascend/moe-layout", root)
        layer_class = definition(root, MOE, "AscendFusedMoE", {"FusedMoE": object, "torch": torch})
        results.append([self_check(layer_class, gate, up, down, tp, transposed) for transposed in (False, True)])
    assert results[1] == [True, True]
    if hidden in (width // tp, 2 * width // tp):
        assert results[0][1] is False, "the fault: these sizes are taken for the other layout"


def self_check(layer_class, gate, up, down, tp: int, transposed: bool) -> bool:
    """Whether loading into either layout gives each rank its part."""
    layer = layer_class.__new__(layer_class)
    layer.quant_method = Method()
    layer.quant_method.transpose = not transposed
    part = len(gate) // tp
    for rank in range(tp):
        rows = slice(rank * part, (rank + 1) * part)
        w13, w2 = torch.zeros(2 * part, gate.shape[1]), torch.zeros(down.shape[0], part)
        wanted = torch.cat([gate[rows], up[rows]]), down[:, rows]
        if transposed:
            w13, w2, wanted = w13.T.contiguous(), w2.T.contiguous(), tuple(w.T for w in wanted)
        try:
            layer._load_w13(w13, 0, "w1", gate, rank)
            layer._load_w13(w13, 0, "w3", up, rank)
            layer._load_w2(w2, 1, down, rank)
        except RuntimeError:  # shapes that do not fit
            return False
        if not (torch.equal(w13, wanted[0]) and torch.equal(w2, wanted[1])):
            return False
    return True


def test_layers_that_note_no_layout_are_judged_by_shape_as_before(installed):
    root = installed(MOE)
    before = definition(root, MOE, "AscendFusedMoE.transpose_weight", {})
    apply("vllm-ascend/moe-layout", root)
    after = definition(root, MOE, "AscendFusedMoE.transpose_weight", {})
    layer = type("Layer", (), {"quant_method": object()})()
    for shape in ((48, 64), (64, 48)):
        results = [f(layer, torch.ones(48, 64), torch.ones(shape), 0) for f in (before, after)]
        assert results[0][0].shape == results[1][0].shape and results[0][1] == results[1][1]


def test_the_state_is_that_of_this_step(write):
    """Two requests of 3 new tokens, 4 of the second in the cache; the step before left the lengths (3, 3)."""
    root = write({"vllm_ascend/worker/model_runner_v1.py": RUNNER_TEXT})
    states = []
    for patched in (False, True):
        if patched:
            assert apply("vllm-ascend/attention-state", root).state == "pending"
        runner = definition(root, RUNNER, "NPUModelRunner", {})()
        runner.seq_lens_np = np.array([3, 3, 0])
        runner.input_batch = type("Batch", (), {"num_computed_tokens_cpu": np.array([0, 4])})
        # as model_runner_v1.py:1562 at 15b2e5c: no cached prefix where lengths equal the tokens of this step
        runner._build_attn_state = lambda n, new, _: bool(np.array_equal(runner.seq_lens_np[:n], new))  # noqa: B023
        states.append(runner._prepare_inputs(2, np.array([3, 3]), None))
    assert states == [True, False], "the fault: the cached prefix is not seen"


def test_the_release_that_has_it_needs_no_attention_state(installed):
    verdict = apply("vllm-ascend/attention-state", installed(RUNNER))
    assert verdict.state == "not needed" and "NPUModelRunner._prepare_inputs has it" in verdict.reason


@pytest.mark.parametrize(
    "name, text",
    [
        ("requirements.txt", "torch>=2.7.1\ntorch-npu=={}\n"),
        ("pyproject.toml", '[build-system]\nrequires = [\n    "torch-npu=={}",\n]\n'),
        ("vllm_ascend-0.11.0.dist-info/METADATA", "Name: vllm_ascend\nRequires-Dist: torch-npu=={}\n"),
    ],
)
def test_the_matrix_s_torch_npu_stays(write, name, text):
    dated = "2.7.1.dev20250724"
    root = write({"vllm_ascend/__init__.py": "", name: text.format(dated)})
    assert apply("vllm-ascend/torch-npu-pin", root).state == "pending"
    new = (root / name).read_text()
    wanted = Requirement(next(part for part in new.replace('"', "").split() if part.startswith("torch-npu")).strip(","))
    assert "2.7.1" in wanted.specifier and not Requirement(f"torch-npu=={dated}").specifier.contains("2.7.1")
    assert wanted.specifier.contains(dated, prereleases=True)
    assert apply("vllm-ascend/torch-npu-pin", root).state == "applied"
    write({name: text.format("2.7.1")})
    assert apply("vllm-ascend/torch-npu-pin", root).state == "not needed"
