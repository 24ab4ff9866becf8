"""One model, many parallel layouts: the same log-probs, gradients and checkpoints, and those of plain HF."""

from itertools import product

import pytest
import torch

from tests.emulator.megatron.conftest import LAYOUTS

pytestmark = pytest.mark.slow

FLOAT32 = [name for name in LAYOUTS if "bf16" not in name]
# Experts replicated over tensor-parallel ranks, without expert parallelism: see test_replicated_experts.
REPLICATED = ["tp2"]


def distance(found, expected) -> float:
    """Norm of the difference, relative to the expected tensor's."""
    return ((found - expected).norm() / expected.norm()).item()


def worst(found: dict, expected: dict) -> tuple[float, str]:
    assert found.keys() == expected.keys()
    return max((distance(found[name], expected[name]), name) for name in expected)


def test_one_rank_computes_what_plain_hf_computes(layouts, hf):
    whole = layouts["dp4"]
    torch.testing.assert_close(whole["log_probs"], hf["log_probs"], rtol=0, atol=1e-5)
    assert worst(whole["hf_gradients"], hf["gradients"]) < (1e-4, "")


@pytest.mark.parametrize("name", FLOAT32)
def test_log_probs(layouts, hf, name):
    torch.testing.assert_close(layouts[name]["log_probs"], hf["log_probs"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in FLOAT32 if name not in REPLICATED])
def test_gradients(layouts, name):
    assert worst(layouts[name]["gradients"], layouts["dp4"]["gradients"]) < (1e-4, "")


@pytest.mark.parametrize("name", REPLICATED)
def test_replicated_experts(layouts, name):
    """Megatron-core 0.12.1 sums such experts' gradients over the data-parallel ranks only.

    Ours are right as far as they go: summed over the tensor-parallel ranks by hand they are the whole gradient.
    """
    found, expected = layouts[name]["gradients"], layouts["dp4"]["gradients"]
    others = {key for key in found if ".experts." not in key}
    assert worst({k: found[k] for k in others}, {k: expected[k] for k in others}) < (1e-4, "")
    assert all(distance(found[key], expected[key]) > 1e-2 for key in found.keys() - others)
    assert worst(layouts[f"{name}-summed"]["gradients"], expected) < (1e-4, "")


@pytest.mark.parametrize("name", ["cp2", "tp2-ep2"])
def test_recomputation_changes_nothing(layouts, name):
    plain, recomputed = layouts[name]["gradients"], layouts[f"{name}-recompute"]["gradients"]
    assert [key for key in plain if not torch.equal(plain[key], recomputed[key])] == []


@pytest.mark.parametrize("name", ["cp2", "tp2-ep2"])
def test_bf16(layouts, name):
    """bf16 keeps 8 bits: sums in another order differ by some 1e-2 of a value."""
    found, expected = layouts[f"{name}-bf16"], layouts["dp4-bf16"]
    torch.testing.assert_close(found["log_probs"], expected["log_probs"], rtol=0, atol=5e-2)
    assert worst(found["gradients"], expected["gradients"]) < (1e-1, "")


@pytest.mark.parametrize("name", LAYOUTS)
def test_checkpoint_saved_under_a_layout_loads_under_another(layouts, name):
    """The weights of the converter's checkpoint, loaded by the layout, saved by it, and loaded whole."""
    found, expected = layouts[name]["weights"], layouts["dp4"]["weights"]
    assert found.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in (*REPLICATED, "tp2-summed")])
def test_verl_sends_the_rollout_the_weights_of_the_hf_checkpoint(layouts, name):
    assert layouts[name]["converted"] == "equal"


def test_parameter_names_are_those_of_transformer_engine(layouts):
    layer = {
        "self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.weight",
        "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight", "self_attention.linear_proj.weight",
        "pre_mlp_layernorm.weight", "mlp.router.weight",
    }  # fmt: skip
    layer |= {f"mlp.experts.linear_{fc}.weight{expert}" for fc, expert in product(("fc1", "fc2"), range(4))}
    names = {f"decoder.layers.{number}.{name}" for number, name in product(range(2), layer)}
    names |= {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight", "output_layer.weight"}
    assert set(layouts["dp4"]["weights"]) == names


@pytest.mark.parametrize("operator", ["npu_fusion_attention", "npu_rms_norm", "npu_swiglu", "npu_grouped_matmul"])
def test_operators_of_torch_npu_do_the_work(traces, operator):
    assert {trace["rank"] for trace in traces} == {"0", "1", "2", "3"}
    for trace in traces:
        assert trace["operators"][operator]["forward"] > 0


@pytest.mark.parametrize("operator", ["npu_fusion_attention_grad", "npu_rms_norm_backward", "npu_swiglu_backward"])
def test_their_gradients_do_the_work_in_the_backward_pass(traces, operator):
    assert all(trace["operators"][operator]["backward"] > 0 for trace in traces)
