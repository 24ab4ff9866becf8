"""An NPU for machines without one: a real PyTorch device and what the stack imports on top of it (see README.md)."""
