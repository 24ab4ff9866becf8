"""Patches of MindSpeed."""
