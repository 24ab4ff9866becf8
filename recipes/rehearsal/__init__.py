"""`invoke train --rehearse`: a recipe in miniature on emulated devices, and a verdict on the stack below it."""

from recipes.rehearsal.rehearse import rehearse

__all__ = ["rehearse"]
