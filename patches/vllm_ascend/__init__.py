"""Patches of vllm-ascend."""
