"""vllm-ascend asks for the registration of ATB's operators before it uses them."""


def _register_atb_extensions() -> None:
    """They are registered when torch_npu is imported."""
