"""F10: experts with hidden == 2 * moe_intermediate / tp are reloaded in the wrong layout, without an error.

vllm-ascend guesses from the shapes whether a weight is transposed (ops/common_fused_moe.py, transpose_weight).
"""

STACKS = ("installed", "performance")


def wrong_experts(width, patched, folder):
    """How many experts' gate and up projections, of 4, are not the trainer's after verl's reload."""
    import tiny
    import torch

    if patched:
        from vllm_ascend.ops.common_fused_moe import AscendFusedMoE

        # Stands for the patch vllm-ascend/moe-layout: once loaded, weights are transposed, whatever their shape.
        AscendFusedMoE.transpose_weight = lambda _, weight, __, dim: (weight.T.contiguous(), 1 - dim)
    sizes = {"moe_intermediate_size": width}
    llm = tiny.engine(folder, sizes)
    weights = tiny.model(seed=1, **sizes).state_dict()
    tiny.reload(llm, weights)
    (layer,) = tiny.runner(llm).model.model.layers
    wanted = "model.layers.0.mlp.experts.{}.{}_proj.weight"
    pairs = [torch.cat([weights[wanted.format(i, name)] for name in ("gate", "up")]).T for i in range(4)]
    found = layer.mlp.experts.w13_weight.cpu()
    return sum(not torch.equal(pair, one) for pair, one in zip(pairs, found, strict=True))


def test_all_experts_are_wrong(on, tmp_path):
    assert on(wrong_experts, 32, False, tmp_path) == 4


def test_another_width_is_right(on, tmp_path):
    assert on(wrong_experts, 48, False, tmp_path) == 0


def test_a_known_layout_is_right(on, tmp_path):
    assert on(wrong_experts, 32, True, tmp_path) == 0
