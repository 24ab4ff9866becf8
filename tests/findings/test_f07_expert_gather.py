"""F7: with tp 2, ep 1, etp 1 verl gathers expert weights over tp though each rank has all of them."""

import pytest

STACKS = ("installed", "performance")


def sent(etp, patched):
    """Shapes of the expert weights that verl sends to the rollout from two tensor-parallel ranks."""
    import tiny
    import torch
    from megatron.core import parallel_state
    from verl.models.mcore import get_mcore_weight_converter
    from verl.utils import megatron_utils

    if patched:
        join = megatron_utils.default_tp_concat_fn

        def without_copies(mapping, name, weight, parts, *others):
            """Stands for the patch verl/expert-gather: as many parts of an expert as it is split into."""
            if ".mlp.experts.linear_fc" in name:
                parts = parts[: parallel_state.get_expert_tensor_parallel_world_size()]
            return join(mapping, name, weight, parts, *others)

        megatron_utils.default_tp_concat_fn = without_copies
    tiny.megatron(tp=2, etp=etp)
    trainer = tiny.Trainer()
    weights = megatron_utils.per_tensor_generator(
        trainer.chunks,
        trainer.hf,
        get_mcore_weight_converter(trainer.hf, torch.bfloat16),
        trainer.config,
        {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."},
    )
    return {name: list(weight.shape) for name, weight in weights if ".experts.3." in name}


def shapes(on, *arguments):
    first, second = on(sent, *arguments, ranks=2)
    assert first == second
    return {name.split(".")[-2]: shape for name, shape in first.items()}


RIGHT = {"gate_proj": [48, 64], "up_proj": [48, 64], "down_proj": [64, 48]}


def test_experts_of_double_size_are_sent(on):
    assert shapes(on, 1, False) == {"gate_proj": [96, 64], "up_proj": [96, 64], "down_proj": [64, 96]}


@pytest.mark.parametrize(("etp", "patched"), [(2, False), (1, True)], ids=["etp 2", "patch verl/expert-gather"])
def test_with_a_cure_they_have_their_size(on, etp, patched):
    assert shapes(on, etp, patched) == RIGHT
