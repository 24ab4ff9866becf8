"""F4: graph mode captures nothing under MindSpeed, whose torch.compile is an identity; the log says it did."""

STACKS = ("performance",)


def captured(real_compile, folder):
    """Graphs captured by vLLM's engine in graph mode, with one layer and two sizes."""
    import tiny
    import torch
    from vllm.compilation.counter import compilation_counter

    if real_compile:
        from mindspeed.patch_utils import MindSpeedPatchesManager

        # Stands for the patch verl/real-compile.
        torch.compile = MindSpeedPatchesManager.patches_info["torch.compile"].orig_func
    tiny.engine(folder, compilation_config={"cudagraph_capture_sizes": [1, 2]}, enforce_eager=False)
    return compilation_counter.num_cudagraph_captured


def test_nothing_is_captured(on, tmp_path):
    assert on(captured, False, tmp_path) == 0


def test_with_the_real_compile_graphs_are_captured(on, tmp_path):
    assert on(captured, True, tmp_path) == 4  # two sizes, before and after the layer's attention


def test_so_that_nothing_refuses_task_queue_2(on, tmp_path):
    """F12's other half: what a real capture refuses passes here, and both can be recommended together."""
    assert on(captured, False, tmp_path, TASK_QUEUE_ENABLE=2) == 0
