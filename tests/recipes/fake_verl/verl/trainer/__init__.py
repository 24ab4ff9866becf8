"""Stands for verl in tests of the launcher: prints steps and writes checkpoints, and computes nothing."""
