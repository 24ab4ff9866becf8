"""torch_npu.contrib. transfer_to_npu is imported by those who want it."""
