"""F2: a model with MindSpeed's fused norm and linear layer does not load what it saved."""

STACKS = ("performance",)


def loaded(cured):
    """Whether verl's model has another's weights after a strict load of its state dict; or the error."""
    import tiny
    import torch

    tiny.megatron()
    if cured:
        tiny.take_extra_state()
    saved = tiny.Trainer().module
    model = tiny.Trainer().module
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    try:
        model.load_state_dict(saved.state_dict())
    except RuntimeError as error:
        return str(error)
    return all(map(torch.equal, saved.parameters(), model.parameters()))


def test_a_model_refuses_its_own_state_dict(on):
    message = on(loaded, False)
    assert "Unexpected key(s) in state_dict" in message
    assert "decoder.layers.0.self_attention.linear_qkv._extra_state" in message


def test_with_set_extra_state_it_loads(on):
    assert on(loaded, True) is True
