"""F13: settings of MindSpeed that stop a run, each with what it needs."""

import pytest

STACKS = ("performance",)
CP_BUILT = {"context_parallel_size": 2}


def outcome(override, cp):
    """The error of a training step of verl's model under an override, or "" where it is made."""
    import tiny

    try:
        tiny.megatron(override, cp=cp)
        trainer = tiny.Trainer(override)
        trainer.step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def expert_weights(override):
    """Names of the experts' weights in verl's model, by which verl loads and sends them."""
    import tiny

    tiny.megatron(override)
    names = [name for name, _ in tiny.Trainer(override).module.named_parameters()]
    return sorted({name.split(".experts.")[1] for name in names if ".experts." in name})


ROTARY = {"use_fused_rotary_pos_emb": True}
ULYSSES = {**CP_BUILT, "context_parallel_algo": "ulysses_cp_algo"}
STEPS = {
    "fused rotary embedding without its type": (
        ROTARY,
        1,
        "AttributeError",
        "position_embedding_type",
        {**ROTARY, "position_embedding_type": "rope"},
    ),
    "context parallelism without the key": (
        {"use_flash_attn": True},
        2,
        "AssertionError",
        "Context parallelism is only supported by TEDotProductAttention",
        CP_BUILT,
    ),
    "no flash attention": (
        {"use_flash_attn": False},
        1,
        "RuntimeError",
        "Please set micro_batch_size or set use_flash_attn=True",
        {"use_flash_attn": True},
    ),
    "Ulysses on packed sequences": (ULYSSES, 2, "AttributeError", "seq_length", CP_BUILT),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_conflict_stops_a_step(on, name):
    override, cp, kind, text, _ = STEPS[name]
    for found in on(outcome, override, cp, ranks=cp):
        assert found.startswith(kind) and text in found


@pytest.mark.parametrize("name", STEPS)
def test_what_it_needs_lets_it_run(on, name):
    _, cp, _, _, cured = STEPS[name]
    assert on(outcome, cured, cp, ranks=cp) == [""] * cp


OVERLAP = {"moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall", "moe_alltoall_overlap_comm": True}


def test_overlapped_exchange_has_no_weights_that_verl_knows(on):
    names = on(expert_weights, OVERLAP)
    assert names and not any("linear_fc1" in name for name in names)


def test_without_the_overlap_it_has(on):
    names = on(expert_weights, {**OVERLAP, "moe_alltoall_overlap_comm": False})
    assert {f"linear_fc{part}.weight{expert}" for part in (1, 2) for expert in range(4)} == set(names)
