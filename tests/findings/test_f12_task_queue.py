"""F12: a graph capture refuses TASK_QUEUE_ENABLE=2 (torch_npu, NPUGraph.cpp, as the emulator has it)."""

STACKS = ("installed", "performance")


def captured():
    """Graphs that vllm-ascend's wrapper captured of a function, or what refused it."""
    import torch
    import torch_npu
    import vllm_ascend.vllm_ascend_C  # noqa: F401  registers what the wrapper calls
    from vllm.config import CUDAGraphMode, VllmConfig, set_current_vllm_config
    from vllm.forward_context import BatchDescriptor, set_forward_context
    from vllm_ascend.compilation.acl_graph import ACLGraphWrapper

    config = VllmConfig()
    mode = CUDAGraphMode.PIECEWISE
    wrapper = ACLGraphWrapper(lambda rows: rows * 2, config, mode)
    rows = torch.ones(1, device="npu")
    size = BatchDescriptor(num_tokens=1)
    with (
        set_current_vllm_config(config),
        set_forward_context(None, config, cudagraph_runtime_mode=mode, batch_descriptor=size),
    ):
        try:
            wrapper(rows)
        except RuntimeError as error:
            return str(error)
    return torch_npu.trace.document()["graphs"]["captured"]


def test_2_is_refused(on):
    assert "not support TASK_QUEUE_ENABLE" in on(captured, TASK_QUEUE_ENABLE=2)


def test_1_is_taken(on):
    assert on(captured, TASK_QUEUE_ENABLE=1) == 1
