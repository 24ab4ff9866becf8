"""F6: the experts' SwiGLU is not fused without the key `moe_grouped_gemm` in the override; verl's own is not seen."""

STACKS = ("performance",)


def fused_calls(override):
    """Calls of npu_swiglu forward and backward in a training step of verl's model with one layer of experts."""
    import tiny

    tiny.megatron(override)
    tiny.Trainer(override).step()
    return {name: calls for name, calls in tiny.operators().items() if "swiglu" in name}


def test_not_fused_without_the_key(on):
    assert on(fused_calls, {}) == {}


def test_fused_with_it(on):
    calls = on(fused_calls, {"moe_grouped_gemm": True})
    assert calls["npu_swiglu"][0] == 1 and calls["npu_swiglu_backward"][1] == 1
