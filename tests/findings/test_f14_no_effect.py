"""F14: use_fused_swiglu, use_fused_rmsnorm and apply_rope_fusion change nothing: same numbers, same operators."""

import pytest

STACKS = ("performance",)
BASE = {"moe_grouped_gemm": True}


def step(override):
    """Loss, gradients and operator counts of a training step of verl's model."""
    import hashlib

    import tiny

    tiny.megatron(override)
    trainer = tiny.Trainer(override)
    loss = trainer.step()
    digest = hashlib.sha256()
    for weight in trainer.module.parameters():
        digest.update(weight.main_grad.cpu().float().numpy().tobytes())
    return [loss, digest.hexdigest(), tiny.operators()]


@pytest.mark.parametrize("switch", ["use_fused_swiglu", "use_fused_rmsnorm", "apply_rope_fusion"])
def test_the_switch_changes_nothing(on, switch):
    assert on(step, {**BASE, switch: True}) == on(step, BASE)


def test_a_switch_that_counts_does(on):
    """So that the test above could see one."""
    rotary = {"use_fused_rotary_pos_emb": True, "position_embedding_type": "rope"}
    assert on(step, {**BASE, **rotary})[2] != on(step, BASE)[2]
