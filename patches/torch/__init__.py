"""Patches of PyTorch."""
