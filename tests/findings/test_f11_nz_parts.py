"""F11: with VLLM_ASCEND_ENABLE_NZ=1, the default, a weight reload writes into parts of FRACTAL_NZ storages."""

STACKS = ("installed", "performance")


def partial_writes(folder):
    """Writes into a part of such a storage while the trainer's weights arrive."""
    import tiny
    import torch_npu

    tiny.engine(folder)
    return torch_npu.trace.counter("nz_partial_writes")


def test_parts_are_written(on, tmp_path):
    assert on(partial_writes, tmp_path, VLLM_ASCEND_ENABLE_NZ=1) > 0


def test_none_with_the_switch_off(on, tmp_path):
    assert on(partial_writes, tmp_path, VLLM_ASCEND_ENABLE_NZ=0) == 0
